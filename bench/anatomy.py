"""What one three-step workflow is made of: statements, round trips and messages, and its time from event to event.

A statement on SQLite is no round trip, and SQLite does not say when it ends: there a transaction ends where its COMMIT
begins. Client, worker and server are traced (`bench.tracing`), so their times are a little longer than without it. The
timeline is that of workflows one at a time: an event's time is the median over all of them, from the call of create.

python -m bench.anatomy [--database postgresql|sqlite] [--alone N] [--instances N] [--delay MS] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from bench import scheduling, tracing
from bench.contestants import stepwell
from bench.databases import PRODUCTS
from bench.loads import WARM_UP
from bench.report import Table, number
from bench.timeline import Hop, hops
from bench.tracing import Kind, Mark
from bench.wire import distant

ROLES = ("client", "server", "worker")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time in which so many workflows ran."""

    title: str
    began: float
    ended: float
    workflows: int


async def main(options: argparse.Namespace) -> None:
    """Run both loads, traced, and print."""
    print(f"scheduling class: {scheduling.keep_ordinary() if options.ordinary else scheduling.take_round_robin()}")
    with PRODUCTS[options.database]() as product, tempfile.TemporaryDirectory() as folder, product.fresh() as url:
        print(product.describe(), flush=True)
        async with distant(url, options.delay) as place, stepwell.start(place, Path(folder)) as engine:
            await engine.order("in_flight", instances=WARM_UP, in_flight=WARM_UP)
            began = time.perf_counter()
            done = await engine.order("one_by_one", instances=options.alone)
            alone = Window("one at a time", began, time.perf_counter(), options.alone)
            began = time.perf_counter()
            await engine.order("in_flight", instances=options.instances, in_flight=options.in_flight)
            crowd = Window(f"{options.in_flight} in flight", began, time.perf_counter(), options.instances)
        marks = {role: tracing.read(Path(folder) / role) for role in ROLES}
    counted = {window.title: counts(marks, window) for window in (alone, crowd)}
    timeline = hops(marks, done["spans"])
    print(count_table(counted).text())
    print(timeline_table(timeline).text())
    if options.json:
        document = {"counts": counted, "timeline": [asdict(hop) for hop in timeline]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


# ---- counts


def counts(marks: dict[str, list[Mark]], window: Window) -> dict[str, float]:
    """Crossings per workflow, by what they are."""
    found: Counter[str] = Counter()
    crossings = ((role, mark) for role in marks for mark in marks[role] if window.began <= mark.at < window.ended)
    for role, mark in crossings:
        if role == "server" and mark.kind is Kind.ASKS:
            found["statements"] += 1
        if role == "server" and mark.kind is Kind.IS_ANSWERED:
            found["round trips to the database"] += 1
        if mark.kind is Kind.WRITES and role in ("client", "worker"):
            found[f"messages {role} to server"] += 1
        if mark.kind is Kind.READS and role in ("client", "worker"):
            found[f"messages server to {role}"] += 1
    return {what: many / window.workflows for what, many in sorted(found.items())}


def count_table(counted: dict[str, dict[str, float]]) -> Table:
    """One row per kind of crossing."""
    kinds = list(dict.fromkeys(kind for found in counted.values() for kind in found))
    rows = [[kind, *(number(found.get(kind, 0.0)) for found in counted.values())] for kind in kinds]
    return Table("Per workflow", ["", *counted], rows)


def timeline_table(timeline: Sequence[Hop]) -> Table:
    """One row per event: when, and how long after the one before."""
    rows, before = [], 0.0
    for hop in timeline:
        share = "" if hop.share > 0.99 else f"{hop.share:.0%}"
        rows.append([hop.event, f"{hop.at_ms:.2f}", f"{hop.at_ms - before:.2f}", share])
        before = hop.at_ms
    return Table("One workflow alone, milliseconds (median)", ["event", "at", "after", "in"], rows)


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--alone", type=int, default=200, metavar="N", help="one at a time (default 200)")
    parser.add_argument("--instances", type=int, default=2000, metavar="N", help="in flight, in all (default 2000)")
    parser.add_argument("--in-flight", type=int, default=256, metavar="N", help="at a time (default 256)")
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="to PostgreSQL, each way (default 0)")
    parser.add_argument("--ordinary", action="store_true", help="leave the scheduling class as it is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep counts and timeline there")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(main(parse()))
