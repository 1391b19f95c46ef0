"""Facts about hooks: their executions, and what is there in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.chaos.facts.fact import Fact


@dataclass(frozen=True, slots=True)
class Handling(Fact):
    """A handler of a hook begins or ends, written and fsynced by itself: the truth about executions of hooks."""

    execution: str
    """Unique per execution, the same in start and end."""
    hook_id: str
    phase: Literal["start", "end", "fail"]
    worker: str
    mono_ns: int
    attempt: int
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class HookRow(Fact):
    """A hook in the final snapshot, by SQL."""

    hook_id: str
    status: str
    attempts: int
    max_attempts: int | None
    idempotency_key: str
    created_at: int
    process_at: int
    ended_at: int | None
