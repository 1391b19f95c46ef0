"""The probe's client: starts over one stream, and over one unary call each.

python -m bench.probe.client ADDRESS
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

import uvloop
from grpc import aio

from bench.drivers.loops import Loops
from bench.probe.messages import SERVICE, Batch, Command, Op, Outbox, Shape


class ProbeClient:
    """The loads over the probe's protocol."""

    def __init__(self, channel: aio.Channel) -> None:
        self.stream = channel.stream_stream(f"/{SERVICE}/Call", Batch.SerializeToString, Batch.FromString)()
        self.run = channel.unary_unary(f"/{SERVICE}/Run", Command.SerializeToString, Command.FromString)
        self.outbox = Outbox(self.stream.write)
        self.ids = itertools.count(time.time_ns() // 1000)
        self.results: dict[int, asyncio.Future[Any]] = {}
        self.reading = asyncio.create_task(self._read())

    async def three_steps(self, number: int) -> None:
        """Over the stream."""
        assert await self.results[self._start(Shape.THREE_STEPS, number)] == 6

    async def three_steps_in_one_call(self, number: int) -> None:
        """By a unary call."""
        ended = await self.run(Command(**self._command(Shape.THREE_STEPS, number, next(self.ids))))
        assert json.loads(ended.data) == 6

    async def sleeper(self, number: int) -> float:
        """Over the stream."""
        return float(await self.results[self._start(Shape.SLEEPER, number)])

    async def waiter(self, number: int) -> int:
        """Over the stream."""
        return self._start(Shape.WAITER, number)

    async def signal(self, waiter: int) -> None:
        """Over the stream."""
        self.outbox.put(op=Op.EVENT, workflow=waiter, data="1")
        assert await self.results[waiter] == {"value": 1}

    def _start(self, shape: Shape, number: int) -> int:
        workflow = next(self.ids)
        self.results[workflow] = asyncio.get_running_loop().create_future()
        self.outbox.put(**self._command(shape, number, workflow))
        return workflow

    def _command(self, shape: Shape, number: int, workflow: int) -> dict[str, Any]:
        return {"op": Op.START, "workflow": workflow, "number": shape, "data": json.dumps({"number": number})}

    async def _read(self) -> None:
        async for batch in self.stream:
            for command in batch.commands:
                self.results.pop(command.workflow).set_result(json.loads(command.data))


async def main(address: str) -> None:
    """Connect and serve."""
    async with aio.insecure_channel(address) as channel:
        client = ProbeClient(channel)
        await Loops(client).serve("ceiling")
        client.reading.cancel()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
