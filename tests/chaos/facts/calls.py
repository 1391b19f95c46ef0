"""Facts about calls of clients, whichever primitive they are about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.facts.fact import Fact, Row


@dataclass(frozen=True, slots=True)
class Call(Fact):
    """A client's call begins (invoke), or is over: ok, fail (certainly not applied) or info (nobody knows).

    `fail` is for INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION and for what was never sent.
    """

    call: str
    """Unique per call, the same in both phases."""
    op: str
    """create, event, pause, resume, terminate, restart, get, list, wait, trigger, next_wake ..."""
    key: str
    phase: Literal["invoke", "ok", "fail", "info"]
    mono_ns: int
    process: str
    request_id: str = ""
    """The same in repetitions of one logical call, and in nothing else."""
    code: str = ""
    """Name of the gRPC status, of fail and info: "UNAVAILABLE"."""
    reason: str = ""
    """ErrorReason without its prefix: "INSTANCE_TERMINAL". Empty if no server has answered."""
    value: Row = field(default_factory=dict)
    """invoke: arguments ("type" and "payload" of an event). ok: what was answered: "status", "run_number",
    "created_at" of an instance; "event_id", "created_at" of an event; "hooks", each with its time; "wake_at", "now"."""
    revision: int | None = None
    """Of the instance that was answered."""
    server: str = ""
    """Replica that was asked, where the client knows."""
