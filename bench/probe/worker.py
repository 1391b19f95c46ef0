"""The probe's worker: a step returns at once, and the next one begins when all before it are stored.

python -m bench.probe.worker ADDRESS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop
from grpc import aio

from bench.drivers.orders import announce, next_order
from bench.probe.messages import NAP, SERVICE, Batch, Op, Outbox, Shape


class Run:
    """A workflow that is running."""

    def __init__(self, worker: Worker, workflow: int) -> None:
        self.worker = worker
        self.workflow = workflow
        self.stored: asyncio.Future[None] | None = None
        """Resolved when the step that was reported last is stored."""
        self.moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the timer fires or the event arrives."""

    async def step(self, number: int) -> dict[str, Any]:
        """Run a step's body and report its result."""
        if self.stored is not None:
            await self.stored
        result = {"place": number, "ok": True}
        self.stored = asyncio.get_running_loop().create_future()
        self.worker.report(op=Op.RESULT, workflow=self.workflow, number=number, data=json.dumps(result))
        return result

    async def execute(self, shape: int) -> None:
        """Run the function of a shape and report its end, which travels with the last step's result."""
        output: Any
        match shape:
            case Shape.THREE_STEPS:
                output = sum([(await self.step(number))["place"] for number in (1, 2, 3)])
            case Shape.SLEEPER:
                due = time.time() + NAP
                self.worker.report(op=Op.SLEEP, workflow=self.workflow, number=1, at=due)
                await self.moved
                output = time.time() - due
                await self.step(2)
            case Shape.WAITER:
                await self.moved
                await self.step(1)
                output = {"value": 1}
        self.worker.report(op=Op.END, workflow=self.workflow, data=json.dumps(output))
        if self.stored is not None:
            await self.stored


class Worker:
    """All runs, and the stream that they share."""

    def __init__(self, channel: aio.Channel) -> None:
        open_stream = channel.stream_stream(f"/{SERVICE}/Work", Batch.SerializeToString, Batch.FromString)
        self.stream = open_stream()
        self.report = Outbox(self.stream.write).put
        self.runs: dict[int, Run] = {}
        self.executing: set[asyncio.Task[None]] = set()

    async def read(self) -> None:
        """Take in commands until the stream ends."""
        async for batch in self.stream:
            for command in batch.commands:
                self._take(command)

    def _take(self, command: Any) -> None:
        match command.op:
            case Op.START:
                run = self.runs[command.workflow] = Run(self, command.workflow)
                task = asyncio.create_task(run.execute(command.number))
                self.executing.add(task)
                task.add_done_callback(lambda done: self._ended(done, command.workflow))
            case Op.RESULT:
                stored = self.runs[command.workflow].stored
                assert stored is not None
                stored.set_result(None)
            case _:
                self.runs[command.workflow].moved.set_result(None)

    def _ended(self, task: asyncio.Task[None], workflow: int) -> None:
        self.executing.discard(task)
        del self.runs[workflow]


async def main(address: str) -> None:
    """Work until the harness has no more orders."""
    async with aio.insecure_channel(address) as channel:
        reading = asyncio.create_task(Worker(channel).read())
        announce()
        await asyncio.to_thread(next_order)
        reading.cancel()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
