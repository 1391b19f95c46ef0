"""What a burst of creates costs a system that has been at rest, beside the same burst on a fresh database.

PostgreSQL keeps a plan from the sixth use of a statement on. Kept while `tasks` has hardly a row, it must still serve a
hundred thousand: the statements are used and the tables analyzed in that state, and nothing analyzes them afterwards.
Each burst has a server and a database of its own, a registered workflow and no worker.

python -m bench.burst [--creates N] [--rest N ...]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import time

from grpc import aio

from bench.databases import Postgres, execute, start_postgres
from bench.processes import start_server
from stepwell.v1 import frames_pb2, workers_pb2, workflows_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub

BATCH = 100
IN_FLIGHT = 8
USES = 40
"""Of each statement at rest, by each of those in flight: more than every connection needs to keep its plans."""
UNATTENDED = """DO $$ DECLARE one text; BEGIN
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = off)', one);
    END LOOP; END $$"""


async def main(options: argparse.Namespace) -> None:
    """Measure a fresh database, then each state of rest, and print the ratios."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    with start_postgres() as product:
        print(product.describe())
        fresh = await measured(product, options.creates, None)
        print(f"  fresh database         {fresh:8,.0f} creates/s", flush=True)
        for rows in options.rest:
            rested = await measured(product, options.creates, rows)
            print(f"  after a rest, {rows} task(s) {rested:8,.0f} creates/s, ratio {rested / fresh:.2f}", flush=True)


async def measured(product: Postgres, creates: int, rest: int | None) -> float:
    """Creates per second of a burst, on a new database; after a rest with that many tasks, unless it is None."""
    with product.fresh() as url:
        async with start_server(url, "--log-level", "error") as server, aio.insecure_channel(server.listen) as channel:
            execute(url, UNATTENDED)
            await WorkerServiceStub(channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello()))
            stub = WorkflowServiceStub(channel)
            if rest is not None:
                await settle(stub, url, rest)
            took = await burst(stub, creates)
            left = int(execute(url, "SELECT count(*) FROM tasks"))
            assert left == creates + (rest or 0), f"{left} tasks"
    return creates / took


def hello() -> frames_pb2.Hello:
    """How a worker that hosts the workflow introduces itself."""
    order = frames_pb2.Handler(kind=frames_pb2.HANDLER_KIND_WORKFLOW, name="order")
    return frames_pb2.Hello(worker_id="bench", session_id="1" * 32, protocol_version=1, handlers=[order])


async def settle(stub: WorkflowServiceStub, url: str, rows: int) -> None:
    """Bring a database to rest with that many tasks, analyzed, and use all statements there until plans are kept."""
    for _ in range(rows):
        await stub.CreateInstance(workflows_pb2.CreateInstanceRequest(workflow="order"))
    execute(url, "ANALYZE")

    async def use() -> None:
        for _ in range(USES):
            request = workflows_pb2.CreateInstancesRequest(items=[workflows_pb2.CreateInstancesItem(workflow="order")])
            made = (await stub.CreateInstances(request)).results[0].instance
            await stub.TerminateInstance(
                workflows_pb2.TerminateInstanceRequest(workflow="order", instance_id=made.instance_id)
            )

    await asyncio.gather(*(use() for _ in range(IN_FLIGHT)))
    assert int(execute(url, "SELECT count(*) FROM tasks")) == rows
    assert int(execute(url, "SELECT reltuples FROM pg_class WHERE relname = 'tasks'")) == rows


async def burst(stub: WorkflowServiceStub, creates: int) -> float:
    """Seconds until that many instances are created."""
    firsts = iter(range(0, creates, BATCH))

    async def create() -> None:
        for first in firsts:
            count = min(BATCH, creates - first)
            items = list(itertools.repeat(workflows_pb2.CreateInstancesItem(workflow="order"), count))
            answer = await stub.CreateInstances(workflows_pb2.CreateInstancesRequest(items=items))
            assert all(one.HasField("instance") for one in answer.results), "a create was refused"

    began = time.perf_counter()
    await asyncio.gather(*(create() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=100_000, metavar="N", help="of each burst (default 100,000)")
    parser.add_argument(
        "--rest", type=int, nargs="+", default=[1, 3], metavar="N", help="tasks in a state of rest (default 1 and 3)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
