"""One scheduling class for all that is measured: other work on the machine disturbs some engines more than others."""

from __future__ import annotations

import os

PRIORITY = 10


def take_round_robin() -> str:
    """Move this process, and all that it starts later, to the class of `chrt -r 10` if it may. Say what holds."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except (AttributeError, PermissionError) as refusal:
        return f"ordinary, because round robin is refused ({refusal}): other work on this machine disturbs the figures"
    return f"round robin, priority {PRIORITY} (chrt -r {PRIORITY}), of every process"


def keep_ordinary() -> str:
    """Leave the class as it is. Say what holds."""
    return "ordinary: other work on this machine disturbs the figures"
