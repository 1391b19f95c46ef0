"""Durable workflows per second, their latency, and what they cost: ours, or interleaved with the peers.

L1  three-step workflows: so many in flight, one at a time, and one call each
L2  sleepers of 2 s: how late they wake, counted from the call of sleep
L3  instances that wait for an event: from sending it to the result, one at a time and all at once
idle  what the processes use while nothing is asked of them (first round only)

Client, server, worker and database are processes of their own. Every contestant has fresh storage in every round, and
the rounds interleave the contestants, because the machine drifts: trust ratios, not figures of different runs.

python -m bench.workflows [--peers] [--contestants NAME ...] [--rounds N] [--delay MS] [--json FILE] ...
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import uvloop

from bench import loads, report, scheduling
from bench.contestants.table import CONTESTANTS, OURS
from bench.databases import PRODUCTS, Product
from bench.loads import Figures, Sizes, Subject
from bench.processes import DidNotAnswer, NotInstalled
from bench.profiling import profiled
from bench.results import Results
from bench.wire import distant

DEFAULT_LOADS = ("l1", "l2", "l3")


class Run:
    """One interleaved run of some contestants."""

    def __init__(self, products: dict[str, Product], options: argparse.Namespace, results: Results) -> None:
        self.products = products
        self.options = options
        self.results = results
        self.began = time.perf_counter()

    async def run(self) -> None:
        """All rounds, and a line for each contestant that is done."""
        for number in range(self.options.rounds):
            self.results.rounds.append({})
            for name in self.options.contestants:
                if number == 0 or not (CONTESTANTS[name].once or name in self.results.absent):
                    await self._measure(number, name)
                    if self.options.json:
                        self.results.save(self.options.json)

    async def _measure(self, number: int, name: str) -> None:
        try:
            figures = await self._figures(number, name)
        except (NotInstalled, DidNotAnswer, OSError, TimeoutError) as failure:
            if name in OURS:
                raise
            self.results.absent[name] = str(failure)
            print(f"\n!!! {name} DID NOT RUN: {failure}\n", file=sys.stderr, flush=True)
            return
        self.results.rounds[number][name] = figures
        heads = {label: head for label, head in report.SUMMARY.items() if label in figures}
        shown = ", ".join(f"{head} {report.number(figures[label])}" for label, head in heads.items())
        passed = time.perf_counter() - self.began
        print(f"  {passed:5.0f} s, round {number + 1} of {self.options.rounds}, {name}: {shown}", flush=True)

    async def _figures(self, number: int, name: str) -> Figures:
        contestant = CONTESTANTS[name]
        product = self.products[contestant.product]
        sizes = Sizes(**self.results.sizes).times(contestant.share)  # type: ignore[arg-type]
        chosen = [load for load in self.options.loads if load != "idle" or number == 0]
        with product.fresh() as url:
            async with distant(url, self.options.delay) as place, contestant.start(place) as engine:
                if number == 0:
                    self._introduce(name, engine.title, engine.settings)
                return await loads.run_all(Subject(engine, product, url), sizes, chosen)

    def _introduce(self, name: str, title: str, settings: str) -> None:
        share = CONTESTANTS[name].share
        self.results.titles[name], self.results.settings[name], self.results.shares[name] = title, settings, share
        fewer = f"; {share:.0%} of the sizes" if share < 1 else ""
        print(f"\n{name}: {title}{fewer}\n  {settings}", flush=True)


async def main(options: argparse.Namespace) -> None:
    """Measure, and print the tables."""
    results = Results(
        asdict(sizes_of(options)),
        scheduling.keep_ordinary() if options.ordinary else scheduling.take_round_robin(),
        options.delay,
    )
    print(f"{results.machine}, load {os.getloadavg()[0]:.1f} at the start\nscheduling class: {results.scheduling}")
    with ExitStack() as stack:
        wanted = dict.fromkeys(CONTESTANTS[name].product for name in options.contestants)
        products = {key: stack.enter_context(PRODUCTS[key]()) for key in wanted}
        results.products = {key: product.describe() for key, product in products.items()}
        print(*results.products.values(), sep="\n", flush=True)
        if options.delay:
            print(f"PostgreSQL is {options.delay:g} ms away, each way", flush=True)
        if options.profile:
            await profile(products, options, sizes_of(options))
            return
        await Run(products, options, results).run()
    for table in report.tables(results):
        print(table.text())
    for name, reason in results.absent.items():
        print(f"\n!!! {name} DID NOT RUN: {reason}")


async def profile(products: dict[str, Product], options: argparse.Namespace, sizes: Sizes) -> None:
    """Sample one process of each contestant under L1."""
    for name in options.contestants:
        contestant = CONTESTANTS[name]
        with products[contestant.product].fresh() as url:
            async with (
                contestant.start(url) as engine,
                profiled(engine.processes[options.profile].pid, f"the {options.profile} of {name} under L1"),
            ):
                done = await engine.order("in_flight", instances=sizes.instances, in_flight=sizes.in_flight)
        print(f"\n{sizes.instances / done['seconds']:,.0f} workflows/s while sampled")


def sizes_of(options: argparse.Namespace) -> Sizes:
    """How much of each load."""
    return Sizes(
        instances=options.instances,
        in_flight=options.in_flight,
        alone=options.alone,
        sleepers=options.sleepers,
        signals=options.signals,
        signals_alone=max(2, options.signals // 5),
        rest=options.rest,
    )


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=OURS)
    parser.add_argument("--peers", action="store_true", help="all contestants")
    parser.add_argument("--loads", nargs="+", choices=loads.LOADS, default=DEFAULT_LOADS)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--instances", type=int, default=2000, metavar="N", help="of L1 (default 2000)")
    parser.add_argument("--in-flight", type=int, default=256, metavar="N", help="of L1 (default 256)")
    parser.add_argument("--alone", type=int, default=200, metavar="N", help="of L1 one at a time (default 200)")
    parser.add_argument("--sleepers", type=int, default=2000, metavar="N", help="of L2 (default 2000)")
    parser.add_argument("--signals", type=int, default=500, metavar="N", help="of L3, a fifth alone (default 500)")
    parser.add_argument("--rest", type=float, default=30, metavar="SECONDS", help="how long to watch rest (default 30)")
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="to PostgreSQL, each way (default 0)")
    parser.add_argument("--ordinary", action="store_true", help="leave the scheduling class as it is")
    parser.add_argument("--profile", choices=("server", "worker", "client"), help="sample this process under L1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results there")
    options = parser.parse_args()
    if options.peers:
        options.contestants = [*CONTESTANTS]
    return options


if __name__ == "__main__":
    uvloop.run(main(parse()))
