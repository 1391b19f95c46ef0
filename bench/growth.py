"""What stored instances cost those that run: the same loads beside nothing, beside sleepers, and beside a million more.

One server, worker and client see it all, so that plans which were made while the database was empty serve the crowd.
What is stored are copies of one instance that waits and of one that has ended, made by SQL. Afterwards the processes
are left alone, to see what a full system at rest uses.

python -m bench.growth [--sleeping N] [--finished N] [--instances N] [--rest SECONDS]
"""

from __future__ import annotations

import argparse
import os
import time

import uvloop

from bench import loads, report, scheduling
from bench.contestants.engine import Engine
from bench.databases import execute, start_postgres
from bench.drivers.stepwell_app import ThreeSteps, Waiter
from bench.loads import Figures, Sizes, Subject
from bench.processes import start_driver, start_server
from stepwell import Client, InstanceStatus

ROOM = 1_000_000_000
"""Numbers of copies begin here, far from those that the server draws."""
COPIED = {"workflow_instances": ("id", "instance_id"), "workflow_steps": ("task_id", ""), "tasks": ("id", "key")}
"""Of each table the column with the instance's number, and the one with its name."""


SHOWN = {
    loads.ALONE: "alone p50 ms",
    loads.RATE: "in flight /s",
    loads.COST + "server": "server us",
    loads.COST + "PostgreSQL": "PostgreSQL us",
    loads.SLEEPERS: "sleepers late p99 ms",
    "idle, processor ms/s, server": "rest: server ms/s",
    "idle, transactions/s": "transactions/s",
    "idle, memory MB, server": "server MB",
}
"""What is shown of the figures, and under which head."""


async def main(options: argparse.Namespace) -> None:
    """Measure, fill, measure again, and print a row for each state."""
    held = scheduling.keep_ordinary() if options.ordinary else scheduling.take_round_robin()
    print(f"load {os.getloadavg()[0]:.1f} at the start\nscheduling class: {held}")
    found: dict[str, Figures] = {}
    with start_postgres() as product, product.fresh() as url:
        print(product.describe(), flush=True)
        async with (
            start_server(url, "--log-level", "warning") as server,
            start_driver("bench.drivers.stepwell_worker", server.listen) as worker,
            start_driver("bench.drivers.stepwell_client", server.listen) as client,
        ):
            processes = {"server": server.watched, "worker": worker.watched, "client": client.watched}
            subject = Subject(Engine("Stepwell", "", client, processes), product, url)
            found["nothing"] = await measured(subject, options)
            waiting, ended = await originals(server.listen, url)
            fill(url, waiting, ROOM, options.sleeping)
            found[f"{options.sleeping:,} waiting"] = await measured(subject, options)
            fill(url, ended, 2 * ROOM, options.finished)
            found[f"and {options.finished:,} finished"] = await measured(subject, options)
            found["the same at rest"] = await loads.rest(subject, sizes_of(options))
    print(table(found).text())


async def measured(subject: Subject, options: argparse.Namespace) -> Figures:
    """The figures of a state."""
    began = time.perf_counter()
    figures = await loads.run_all(subject, sizes_of(options), ["l1", "l2"])
    print(f"  measured in {time.perf_counter() - began:.0f} s", flush=True)
    return figures


async def originals(address: str, url: str) -> tuple[int, int]:
    """The number of an instance that waits for an hour, and of one that has ended."""
    async with Client(address) as client:
        waits = await client.workflow(Waiter).create("waits", params={})
        async for change in waits.watch():
            if change.instance.status is InstanceStatus.WAITING:
                break
        await (await client.workflow(ThreeSteps).create("ended", params={"number": 1})).result()
    numbers = execute(url, "SELECT id FROM workflow_instances WHERE instance_id IN ('waits', 'ended') ORDER BY id")
    waiting, ended = map(int, numbers.split())
    return waiting, ended


def fill(url: str, original: int, first: int, count: int) -> None:
    """Store so many copies of an instance, and let PostgreSQL look at how much there is now."""
    began = time.perf_counter()
    for table, (number, name) in COPIED.items():
        named = f", '{name}', 'copy-' || number, 'request_id', NULL" if name else ""
        changes = f"'{number}', number{named}"
        execute(
            url,
            f"""INSERT INTO {table} SELECT (jsonb_populate_record(one, jsonb_build_object({changes}))).*
            FROM {table} one, generate_series({first}, {first + count - 1}) number WHERE one.{number} = {original}""",
        )
    execute(url, "VACUUM ANALYZE", "CHECKPOINT")
    print(f"  stored {count:,} copies in {time.perf_counter() - began:.0f} s", flush=True)


def table(found: dict[str, Figures]) -> report.Table:
    """One row per state, one column per figure."""
    labels = [label for label in SHOWN if any(label in figures for figures in found.values())]
    rows = [
        [state, *(report.number(figures[label]) if label in figures else "-" for label in labels)]
        for state, figures in found.items()
    ]
    return report.Table("Beside what is stored", ["stored", *(SHOWN[label] for label in labels)], rows)


def sizes_of(options: argparse.Namespace) -> Sizes:
    """How much of each load."""
    return Sizes(options.instances, 256, options.alone, options.sleepers, 2, 2, options.rest)


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleeping", type=int, default=100_000, metavar="N", help="stored (default 100,000)")
    parser.add_argument("--finished", type=int, default=1_000_000, metavar="N", help="stored (default 1,000,000)")
    parser.add_argument("--instances", type=int, default=2000, metavar="N", help="of L1 (default 2000)")
    parser.add_argument("--alone", type=int, default=200, metavar="N", help="of L1 one at a time (default 200)")
    parser.add_argument("--sleepers", type=int, default=200, metavar="N", help="of L2 (default 200)")
    parser.add_argument("--rest", type=float, default=30, metavar="SECONDS", help="how long to watch rest (default 30)")
    parser.add_argument("--ordinary", action="store_true", help="leave the scheduling class as it is")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(main(parse()))
