"""What a fact is: the language in which the parts of a chaos run speak of what happened.

Facts of different processes are compared by CLOCK_MONOTONIC, which all processes of one machine share, or by the
database's clock:

- `*_ns` is CLOCK_MONOTONIC in nanoseconds (`time.monotonic_ns()`).
- `*_us`, and every time of a row, is the database's clock in epoch microseconds.

`key` is always "namespace/workflow/instance_id". Statuses are spelled as the schema spells them ("waiting_for_pause").
Payloads are the JSON text as it is stored, `None` where there is none.
"""

from __future__ import annotations

import time
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


class Fact:
    """Something that was seen, in plain values, so that one line of JSON holds it."""

    __slots__ = ()


def key_of(namespace: str, workflow: str, instance_id: str) -> str:
    """What an instance is called in every fact."""
    return f"{namespace}/{workflow}/{instance_id}"


def now_ns() -> int:
    """The clock that all processes of the machine share."""
    return time.monotonic_ns()


def wall_us() -> int:
    """The wall clock in microseconds."""
    return time.time_ns() // 1000
