"""Temporal's client: one call to start a workflow, one that waits for its result.

python -m bench.drivers.temporal_client ADDRESS VERSION      (in .venv-peers)
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

import uvloop
from temporalio.client import Client, WorkflowHandle

from bench.drivers.loops import Loops
from bench.drivers.temporal_app import QUEUE, Sleeper, ThreeSteps, Waiter


class TemporalClient:
    """The loads with Temporal's SDK."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def three_steps(self, number: int) -> None:
        """Start one and wait for its result."""
        assert await (await self._start(ThreeSteps.run, number)).result() == 6

    async def sleeper(self, number: int) -> float:
        """Start one and wait for its lateness."""
        return float(await (await self._start(Sleeper.run, number)).result())

    async def waiter(self, number: int) -> WorkflowHandle[Any, Any]:
        """Start one."""
        return await self._start(Waiter.run, number)

    async def signal(self, waiter: WorkflowHandle[Any, Any]) -> None:
        """Send the signal and wait for the result."""
        await waiter.signal(Waiter.approve, 1)
        assert await waiter.result() == {"value": 1}

    async def _start(self, run: Any, number: int) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(run, number, id=uuid4().hex, task_queue=QUEUE)


async def main(address: str, version: str) -> None:
    """Connect and serve."""
    await Loops(TemporalClient(await Client.connect(address))).serve(version)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
