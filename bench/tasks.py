"""What the spine does per second, beside raw inserts on the same database, and what a server asks for while at rest.

python bench/tasks.py [--rest SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import structlog
import uvloop
from sqlalchemy import make_url, text

from stepwell_server.app import open_database
from stepwell_server.domain.leases import Owner
from stepwell_server.domain.tasks import Task
from stepwell_server.storage import migrate
from stepwell_server.storage.database import Database, Tx
from tests.support.postgres import PostgresServer, wheel_server
from tests.support.servers import start_process
from tests.support.spine import Spine, running

OPERATIONS = {1: 400, 8: 2000, 64: 8000, 512: 16_000}
"""Tasks per number of callers: about two seconds each."""
CREDITS = 16
RAW_ROWS = 100
RAW_SECONDS = 2.0
SETTLE = 10.0
"""Seconds after a start until a server is at rest."""

RAW_INSERT = """
    INSERT INTO tasks (namespace, kind, name, key, run_number, reason, priority, run_at, status, fence, revision,
                       frame_number, stop, wake_again, interruptions, acked, open_steps, created_at)
    VALUES """ + ", ".join(
    f"('default', 'workflow', 'order', :key{row}, 0, 'run', 9, 1, 'pending', 0, 0, 0, 'none', false, 0, false, '', 0)"
    for row in range(RAW_ROWS)
)


async def main(rest: float) -> None:
    """Measure both databases and print a table for each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory() as folder:
        await throughput("SQLite", (f"sqlite:///{folder}/{number}.db" for number in itertools.count()))
    with wheel_server() as wheel:
        server = PostgresServer(wheel.get_uri())
        await throughput("PostgreSQL", (server.create_database() for _ in itertools.count()))
        await at_rest(server, rest)


# ---- per second


async def throughput(product: str, urls: Iterator[str]) -> None:
    """Print tasks per second for each number of callers, each on a database of its own."""
    async with opened(next(urls)) as db:
        raw = await raw_inserts(db)
    print(f"{product}: {raw:,.0f} rows/s by raw inserts of {RAW_ROWS} rows, one connection, a commit each")
    print("  callers   schedule/s   per group      claim/s     finish/s   schedule/raw")
    for callers, operations in OPERATIONS.items():
        async with opened(next(urls)) as db, running(Spine(db)) as spine:
            scheduled, grouped, claimed, finished = await cell(spine, callers, operations)
        rates = f"{scheduled:12,.0f} {grouped:11.1f} {claimed:12,.0f} {finished:12,.0f}"
        print(f"  {callers:7} {rates} {scheduled / raw:14.0%}", flush=True)


async def cell(spine: Spine, callers: int, operations: int) -> tuple[float, float, float, float]:
    """Tasks scheduled per second, calls per group meanwhile, tasks claimed and tasks finished per second."""
    keys = iter(range(operations))
    tasks: list[Task] = []

    async def schedule(_caller: int) -> None:
        for key in keys:
            await spine.schedule(str(key))

    async def claim(caller: int) -> None:
        while claimed := await spine.claim(Owner(f"{caller:032x}", 1), CREDITS):
            tasks.extend(claimed)

    async def finish(_caller: int) -> None:
        while tasks:
            await spine.finish(tasks.pop())

    scheduled = operations / await timed(schedule, callers)
    grouped = operations / len(spine.committed)
    claimed = operations / await timed(claim, callers)
    assert len(tasks) == operations
    finished = operations / await timed(finish, callers)
    return scheduled, grouped, claimed, finished


async def timed(work: Callable[[int], Awaitable[None]], callers: int) -> float:
    """Seconds until all callers are done."""
    began = time.perf_counter()
    await asyncio.gather(*map(work, range(callers)))
    return time.perf_counter() - began


async def raw_inserts(db: Database) -> float:
    """Rows per second that the database takes, with nothing decided and nothing answered: the ceiling."""
    keys = itertools.count()

    def insert(tx: Tx) -> None:
        tx.execute(text(RAW_INSERT), {f"key{row}": str(next(keys)) for row in range(RAW_ROWS)})

    began = time.perf_counter()
    rows = 0
    while time.perf_counter() - began < RAW_SECONDS:
        await db.run_tx(insert)
        rows += RAW_ROWS
    return rows / (time.perf_counter() - began)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """A migrated database."""
    db = open_database(make_url(url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    yield db
    await db.close()


# ---- at rest


async def at_rest(server: PostgresServer, seconds: float) -> None:
    """Print the transactions per second of a server that nobody calls; SQLite has nobody who counts them."""
    url = server.create_database()
    name = make_url(url).database
    count = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{name}'"
    async with start_process(url, "--log-level", "warning") as process:
        await asyncio.sleep(SETTLE)
        before = int(server.execute(count))
        await asyncio.sleep(seconds)
        after = int(server.execute(count))
        await process.stop()
    print(f"at rest, PostgreSQL: {(after - before) / seconds:.2f} transactions/s over {seconds:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rest", type=float, default=120, metavar="SECONDS", help="how long to watch a server at rest")
    uvloop.run(main(parser.parse_args().rest))
