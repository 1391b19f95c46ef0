"""Durable workflows per second, their latency, and what rest costs, alone or interleaved with DBOS.

L1  three-step workflows: all started at once, so many in flight, and one at a time
L2  sleepers of 2 s: how late they wake, counted from the call of sleep
L3  instances that wait for an event: from sending it to the result, one at a time and all at once
idle  what the processes use while nobody asks for anything

Server, worker and client are processes of their own; DBOS is a library and therefore one process. Every round has a
fresh database, and rounds alternate, because the machine drifts: trust ratios, not figures of different runs.

python -m bench.workflows [--peers] [--rounds N] [--instances N] [--profile [ROLE]] ...
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import uvloop

from bench import loads
from bench.databases import Product, start_postgres, start_sqlite
from bench.engines import StartEngine, start_dbos, start_stepwell
from bench.loads import Figures, Sizes, Subject
from bench.profiling import profiled
from bench.report import print_ratio, print_table

LOADS = ("l1", "l2", "l3", "idle")
POLLED_SIGNALS = 10
"""DBOS finds events on SQLite by asking once a second: a hundred one by one would take two minutes."""


async def main(options: argparse.Namespace) -> None:
    """Measure on each database and print its table."""
    sizes = Sizes(
        instances=options.instances,
        in_flight=options.in_flight,
        alone=options.alone,
        sleepers=options.sleepers,
        signals=options.signals,
        signals_alone=options.signals // 5,
        rest=options.rest,
    )
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    for start in options.databases:
        with start() as product:
            print(f"\n{product.describe()}", flush=True)
            if options.profile:
                await profile(product, sizes, options.profile)
            else:
                await compare(product, sizes, options)


async def compare(product: Product, sizes: Sizes, options: argparse.Namespace) -> None:
    """Run the rounds, ours and the peer's in turn, and print their medians."""
    rounds: dict[str, list[Figures]] = {}
    for number in range(options.rounds):
        chosen = set(options.loads) - ({"idle"} if number else set())  # rest is long, and the same every time
        for start, own_sizes in contestants(product, sizes, options):
            name, figures = await measure(product, start, own_sizes, chosen)
            rounds.setdefault(name, []).append(figures)
            rate = f", {figures[loads.RATE]:,.0f} workflows/s" if loads.RATE in figures else ""
            print(f"  round {number + 1}: {name}{rate}", flush=True)
            if options.json:
                keep(options.json, product.title, name, figures)
    print_table(product.title, rounds)
    print_ratio(f"three-step workflows/s on {product.title}", loads.RATE, rounds)


def contestants(product: Product, sizes: Sizes, options: argparse.Namespace) -> Iterator[tuple[StartEngine, Sizes]]:
    """Who takes part, with how much: a slower engine needs fewer instances for the same certainty."""
    if not options.only_peers:
        yield start_stepwell, sizes
    if options.peers:
        polled = product.title == "SQLite"
        alone = min(POLLED_SIGNALS, sizes.signals_alone) if polled else sizes.signals_alone
        yield start_dbos, replace(sizes, instances=options.peer_instances, signals_alone=alone)


async def measure(product: Product, start: StartEngine, sizes: Sizes, chosen: set[str]) -> tuple[str, Figures]:
    """One engine on one fresh database under the chosen loads."""
    figures: Figures = {}
    with product.fresh() as url:
        async with start(url) as engine:
            subject = Subject(engine, product, url)
            await loads.warm_up(subject)
            if "l1" in chosen:
                figures |= await loads.burst(subject, sizes)
                figures |= await loads.steady(subject, sizes)
            if "l1" in chosen and engine.has_unary:
                figures |= await loads.unary(subject, sizes)
            if "l2" in chosen:
                figures |= await loads.sleepers(subject, sizes)
            if "l3" in chosen:
                figures |= await loads.signals(subject, sizes)
            if "idle" in chosen:
                figures |= await loads.rest(subject, sizes)
    return engine.name, figures


async def profile(product: Product, sizes: Sizes, role: str) -> None:
    """Sample one of our processes under L1."""
    with product.fresh() as url:
        async with start_stepwell(url) as engine:
            await loads.warm_up(Subject(engine, product, url))
            async with profiled(engine.processes[role].pid, f"the {role} on {product.title} under L1"):
                done = await engine.order("burst", instances=sizes.instances, in_flight=sizes.in_flight)
    print(f"\n{sizes.instances / done['seconds']:,.0f} workflows/s while sampled")


def keep(path: Path, database: str, engine: str, figures: Figures) -> None:
    """Add a round to a file, one JSON line each."""
    with path.open("a") as file:
        file.write(json.dumps({"database": database, "engine": engine, **figures}) + "\n")


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    products = {"sqlite": [start_sqlite], "postgresql": [start_postgres], "both": [start_postgres, start_sqlite]}
    parser.add_argument("--database", choices=products, default="both")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--instances", type=int, default=2000, metavar="N", help="of L1, ours (default 2000)")
    parser.add_argument("--in-flight", type=int, default=256, metavar="N", help="of L1 (default 256)")
    parser.add_argument("--alone", type=int, default=200, metavar="N", help="of L1 one at a time (default 200)")
    parser.add_argument("--sleepers", type=int, default=500, metavar="N", help="of L2 (default 500)")
    parser.add_argument(
        "--signals", type=int, default=500, metavar="N", help="of L3, a fifth one at a time (default 500)"
    )
    parser.add_argument("--rest", type=float, default=20, metavar="SECONDS", help="how long to watch rest (default 20)")
    parser.add_argument("--peers", action="store_true", help="DBOS too, in turn")
    parser.add_argument("--only-peers", action="store_true", help="DBOS alone")
    parser.add_argument("--peer-instances", type=int, default=300, metavar="N", help="of L1, DBOS (default 300)")
    parser.add_argument(
        "--profile", nargs="?", const="server", choices=("server", "worker", "client"), help="sample it under L1"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="add every round to this file")
    options = parser.parse_args()
    options.databases = products[options.database]
    options.peers |= options.only_peers
    return options


if __name__ == "__main__":
    uvloop.run(main(parse()))
