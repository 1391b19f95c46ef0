"""The hook of a chaos run, which writes down that it begins and ends."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from stepwell import JobContext, hook
from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.hooks import Handling
from tests.chaos.workload.hooks.load import NOTE
from tests.chaos.workload.ledger import DeliberateFailure, Ledger


@hook(NOTE)
async def note(payload: Any, ctx: JobContext) -> None:
    """A hook; see `load.py`."""
    about = {"execution": uuid4().hex[:16], "hook_id": ctx.id, "worker": Ledger.worker}
    about |= {"attempt": ctx.attempt, "idempotency_key": ctx.idempotency_key}
    Ledger.recorder.record(Handling(**about, phase="start", mono_ns=now_ns()))
    if ctx.attempt <= payload["failures"]:
        Ledger.recorder.record(Handling(**about, phase="fail", mono_ns=now_ns()))
        raise DeliberateFailure(f"attempt {ctx.attempt}")
    Ledger.recorder.record(Handling(**about, phase="end", mono_ns=now_ns()))


HANDLERS = (note,)
