"""Tasks per second through the API, a unary call at a time: created, claimed and finished by so many callers at once.

Each caller is a session of its own, which claims up to CLAIMED tasks in a call; tasks are created and finished one by
one. Batches, streams and group commits across workflows are what `bench.workflows` shows.

python -m bench.tasks [--callers N ...] [--tasks N]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import uvloop
from grpc import aio

from bench.databases import PRODUCTS
from bench.processes import start_server
from stepwell.v1 import frames_pb2, workers_pb2, workflows_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub

WORKFLOW = "order"
CLAIMED = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """A session that claims and finishes."""

    channel: aio.Channel
    session_id: str
    claimed: list[frames_pb2.ServerFrame]

    async def register(self) -> None:
        """Say what it can handle."""
        order = frames_pb2.Handler(kind=frames_pb2.HANDLER_KIND_WORKFLOW, name=WORKFLOW)
        hello = frames_pb2.Hello(worker_id="bench", session_id=self.session_id, protocol_version=1, handlers=[order])
        await WorkerServiceStub(self.channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello))

    async def create(self, numbers: Iterator[int]) -> None:
        """Create instances until the numbers are used up."""
        stub, request = WorkflowServiceStub(self.channel), workflows_pb2.CreateInstanceRequest(workflow=WORKFLOW)
        for _ in numbers:
            await stub.CreateInstance(request)

    async def claim(self) -> None:
        """Claim until there is nothing left."""
        request = workers_pb2.ClaimTasksRequest(session_id=self.session_id, max_tasks=CLAIMED)
        while frames := (await WorkerServiceStub(self.channel).ClaimTasks(request)).frames:
            self.claimed.extend(frames)

    async def finish(self) -> None:
        """End what it claimed."""
        for task in self.claimed:
            frame = frames_pb2.WorkerFrame(task_id=task.task_id, fence=task.fence, number=1, finish=frames_pb2.Finish())
            request = workers_pb2.CommitTaskRequest(session_id=self.session_id, frames=[frame])
            answered = await WorkerServiceStub(self.channel).CommitTask(request)
            assert answered.frames[0].HasField("ack"), answered


async def main(options: argparse.Namespace) -> None:
    """Measure both databases and print a table for each."""
    for name in ("sqlite", "postgresql"):
        with PRODUCTS[name]() as product:
            print(product.describe())
            print("  callers    created/s    claimed/s   finished/s")
            for callers in options.callers:
                with product.fresh() as url:
                    rates = await cell(url, callers, options.tasks)
                print(f"  {callers:7} " + " ".join(f"{rate:12,.0f}" for rate in rates), flush=True)


async def cell(url: str, callers: int, tasks: int) -> tuple[float, float, float]:
    """Tasks created, claimed and finished per second."""
    async with start_server(url, "--log-level", "error") as server, aio.insecure_channel(server.listen) as channel:
        sessions = [Caller(channel, uuid4().hex, []) for _ in range(callers)]
        await asyncio.gather(*(session.register() for session in sessions))
        numbers = iter(range(tasks))
        created = await timed(sessions, lambda session: session.create(numbers))
        claimed = await timed(sessions, Caller.claim)
        assert sum(len(session.claimed) for session in sessions) == tasks
        finished = await timed(sessions, Caller.finish)
    return tasks / created, tasks / claimed, tasks / finished


async def timed(sessions: list[Caller], work: Callable[[Caller], Awaitable[None]]) -> float:
    """Seconds until all callers are done."""
    began = time.perf_counter()
    await asyncio.gather(*map(work, sessions))
    return time.perf_counter() - began


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="default 1, 8, 64")
    parser.add_argument("--tasks", type=int, default=2000, metavar="N", help="of each row (default 2000)")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(main(parse()))
