"""Temporal's worker, until the harness has no more orders.

python -m bench.drivers.temporal_worker ADDRESS      (in .venv-peers)
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

import uvloop
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.drivers.orders import announce, next_order
from bench.drivers.temporal_app import QUEUE, Sleeper, ThreeSteps, Waiter, small_step

AT_ONCE = 200
POLLS = 10
CACHE = 5000


async def main(address: str) -> None:
    """Serve the workflows of the loads."""
    worker = Worker(
        await Client.connect(address),
        task_queue=QUEUE,
        workflows=[ThreeSteps, Sleeper, Waiter],
        activities=[small_step],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=AT_ONCE,
        max_concurrent_activities=AT_ONCE,
        max_cached_workflows=CACHE,
        max_concurrent_workflow_task_polls=POLLS,
        max_concurrent_activity_task_polls=POLLS,
    )
    async with worker:
        announce(version=version("temporalio"))
        await asyncio.to_thread(next_order)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
