"""The workflows of the loads for Temporal, with activities as steps."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

QUEUE = "bench"
NAP = 2.0
LIMIT = timedelta(seconds=60)


@activity.defn
async def small_step(place: int) -> dict[str, Any]:
    """Return a small JSON at once."""
    return {"place": place, "ok": True}


async def step(place: int) -> int:
    """Run it durably."""
    result = await workflow.execute_activity(small_step, place, start_to_close_timeout=LIMIT)
    return int(result["place"])


@workflow.defn
class ThreeSteps:
    """L1."""

    @workflow.run
    async def run(self, _number: int) -> int:
        """Add up what the steps return."""
        return sum([await step(place) for place in (1, 2, 3)])


@workflow.defn(sandboxed=False)
class Sleeper:
    """L2."""

    @workflow.run
    async def run(self, _number: int) -> float:
        """Return by how much it woke too late, by the wall clock: it is in the worker's cache and not replayed."""
        called = time.time()
        await asyncio.sleep(NAP)
        late = time.time() - called - NAP
        await step(1)
        return late


@workflow.defn
class Waiter:
    """L3."""

    def __init__(self) -> None:
        self.value: int | None = None

    @workflow.run
    async def run(self, _number: int) -> dict[str, Any]:
        """Return what the signal carried."""
        await workflow.wait_condition(lambda: self.value is not None)
        await step(1)
        return {"value": self.value}

    @workflow.signal
    async def approve(self, value: int) -> None:
        """The event."""
        self.value = value
