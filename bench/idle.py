"""What a server asks its database at rest: with a worker, a follower of wakes, and 10,000 timers that are far.

The server is traced (`bench.tracing`); what it asks is shown as transactions, most frequent first.

python -m bench.idle [SECONDS]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from bench import tracing
from bench.databases import PRODUCTS
from bench.processes import start_driver, start_server
from bench.timeline import transactions
from stepwell.v1 import dispatchers_pb2, hooks_pb2
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.hooks_pb2_grpc import HookServiceStub

FAR = 86_400
TIMERS = 10_000
BATCH = 100
SETTLE = 15.0
"""Seconds until nothing of the preparations goes on."""
SHOWN = 5


async def main(rest: float) -> None:
    """Measure both databases and both ways to dispatch, and print."""
    print(f"{rest:.0f} s at rest; {TIMERS:,} timers that are far, a worker, a follower of wakes; per minute")
    for name in ("sqlite", "postgresql"):
        with PRODUCTS[name]() as product:
            for dispatch in ("embedded", "external"):
                with product.fresh() as url:
                    asked = await cell(url, dispatch, rest)
                minute = 60 / rest
                print(f"  {product.title:10} {dispatch:8}  {asked.total() * minute:6.1f} transactions", flush=True)
                for what, count in asked.most_common(SHOWN):
                    print(f"    {count * minute:6.1f}  {what}")


async def cell(url: str, dispatch: str, rest: float) -> Counter[str]:
    """The transactions of a server while it rests."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "server"
        settings = ("--dispatch", dispatch, "--log-level", "warning")
        async with (
            start_server(url, *settings, before=("bench.tracing", str(marks))) as server,
            start_driver("bench.drivers.stepwell_worker", server.listen),
            aio.insecure_channel(server.listen) as channel,
        ):
            await fill(channel)
            async with following(channel):
                await asyncio.sleep(SETTLE)
                began = time.perf_counter()
                await asyncio.sleep(rest)
                ended = time.perf_counter()
        found = transactions(tracing.read(marks))
    return Counter(str(transaction) for first, _, transaction in found if began <= first < ended)


async def fill(channel: aio.Channel) -> None:
    """Store the timers: hooks that are due in a day."""
    far = Timestamp(seconds=int(time.time()) + FAR)
    request = hooks_pb2.TriggerHooksRequest(items=[hooks_pb2.TriggerHooksItem(name="note", process_at=far)] * BATCH)
    for _ in range(TIMERS // BATCH):
        answered = await HookServiceStub(channel).TriggerHooks(request)
        assert all(result.HasField("hook") for result in answered.results), "a hook was refused"


@asynccontextmanager
async def following(channel: aio.Channel) -> AsyncIterator[None]:
    """Follow the next wake, as a sidecar does, once there is one."""
    stream = DispatcherServiceStub(channel).WakeStream(dispatchers_pb2.WakeStreamRequest())
    async for message in stream:
        if message.next_wake.HasField("wake_at"):
            break
    reading = asyncio.create_task(read_on(stream))
    yield
    stream.cancel()
    await reading


async def read_on(
    stream: aio.UnaryStreamCall[dispatchers_pb2.WakeStreamRequest, dispatchers_pb2.WakeStreamResponse],
) -> None:
    """Read until the stream is cancelled."""
    try:
        while await stream.read() is not aio.EOF:
            pass
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
