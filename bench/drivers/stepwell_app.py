"""The workflows of the loads, as a user would write them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from stepwell import App, JobContext, WorkflowEntrypoint, hook

NAP = 2.0
APPROVAL = "approval"


class ThreeSteps(WorkflowEntrypoint[Any, Any]):
    """L1: three steps that return a small JSON at once."""

    name = "three-steps"

    async def run(self, event: Any, step: Any) -> int:
        """Add up what the steps return."""
        number = event.payload["number"]
        results = [await step.do(f"step {place}", partial(small_step, number, place)) for place in (1, 2, 3)]
        return sum(result["place"] for result in results)


async def small_step(number: int, place: int) -> dict[str, Any]:
    """Return a small JSON at once."""
    return {"number": number, "place": place, "ok": True}


class Sleeper(WorkflowEntrypoint[Any, Any]):
    """L2: sleeps, then one step."""

    name = "sleeper"
    called: dict[str, float] = {}
    """When each called sleep: the code before a sleep may run once more after it, and shall not count anew."""

    async def run(self, event: Any, step: Any) -> float:
        """Return by how much it woke too late, counted from the call."""
        called = self.called.setdefault(event.instance_id, time.time())
        await step.sleep("nap", f"{NAP:g} seconds")
        late = time.time() - called - NAP

        @step.do("note")
        async def note() -> float:
            return late

        return float(await note())


class Waiter(WorkflowEntrypoint[Any, Any]):
    """L3: waits for an event, then one step."""

    name = "waiter"

    async def run(self, event: Any, step: Any) -> Any:
        """Return what the event carried."""
        approval = await step.wait_for_event("approval", type=APPROVAL, timeout="1 hour")

        @step.do("note")
        async def note() -> Any:
            return approval.payload

        return await note()


@hook("note")
async def note(_payload: Any, _context: JobContext) -> None:
    """What the far timers of `bench.idle` would call."""


app = App(workflows=[ThreeSteps, Sleeper, Waiter], hooks=[note])
