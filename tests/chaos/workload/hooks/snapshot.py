"""Hooks at the end of a run, as SQL tells of them."""

from __future__ import annotations

from tests.chaos.facts.fact import Fact
from tests.chaos.facts.hooks import HookRow
from tests.chaos.workload.tables import fetch

_COLUMNS = ("hook_id", "status", "attempts", "max_attempts", "idempotency_key", "created_at", "process_at", "ended_at")


async def snapshot(address: str, url: str) -> list[Fact]:
    """All hooks."""
    rows = await fetch(url, "SELECT * FROM hooks")
    return [HookRow(**{name: row[name] for name in _COLUMNS}) for row in rows]
