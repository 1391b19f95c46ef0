"""What a server asks its database at rest: with a worker, a dispatcher that follows, and 10,000 timers that are far.

python bench/idle.py [SECONDS]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack

import structlog

from tests.support.postgres import PostgresServer, wheel_server
from tests.support.servers import Served, start_in_process
from tests.support.statements import counted
from tests.support.triggers import Triggers, item
from tests.support.wakes import Sidecar, waits
from tests.support.workers import HandWorker

FAR = 86_400.0
TIMERS = 10_000
BATCH = 100
SETTLE = 15.0
"""Seconds until nothing of the preparations goes on."""
BEAT = 10.0


async def main(rest: float) -> None:
    """Measure both databases and both ways to dispatch, and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory() as folder, wheel_server() as wheel:
        server = PostgresServer(wheel.get_uri())
        cells = {
            ("SQLite", "embedded"): f"sqlite:///{folder}/embedded.db",
            ("SQLite", "external"): f"sqlite:///{folder}/external.db",
            ("PostgreSQL", "embedded"): server.create_database(),
            ("PostgreSQL", "external"): server.create_database(),
        }
        async with AsyncExitStack() as stack:
            servers = [  # one after the other: migrations do not run side by side in a process
                await stack.enter_async_context(start_in_process(url, dispatch=dispatch))
                for (_, dispatch), url in cells.items()
            ]
            measured = await asyncio.gather(*(cell(served, rest) for served in servers))
    print(f"{rest:.0f} s at rest; {TIMERS:,} timers that are far, a worker, a follower of wakes; statements per minute")
    for (product, dispatch), counts in zip(cells, measured, strict=True):
        swept = counts.pop("sweep", 0) * 60 / rest
        beyond = sum(counts.values()) * 60 / rest
        print(f"  {product:10} {dispatch:8}  sweep {swept:6.1f}   beyond it {beyond:5.2f}   {dict(counts) or ''}")


async def cell(served: Served, rest: float) -> Counter[str]:
    """The statements of one server while it rests, by the label of their transaction."""
    await fill(served)
    worker = HandWorker(served.channel, (), hooks=("note",))
    await worker.connect(credit=10)
    async with Sidecar(served.channel).follow() as follower:
        await follower.until(waits)
        await beat(worker, SETTLE)
        with counted(served.app) as counts:
            await beat(worker, rest)
    await worker.break_off()
    return counts


async def fill(served: Served) -> None:
    """Store the timers."""
    hooks = Triggers(served.channel)
    far = await hooks.now() + FAR
    for _ in range(TIMERS // BATCH):
        await hooks.trigger_many(*(item(name="note", process_at=far) for _ in range(BATCH)))


async def beat(worker: HandWorker, seconds: float) -> None:
    """Beat as a worker does, for so long."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        await worker.beat()
        await asyncio.sleep(min(BEAT, left))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
