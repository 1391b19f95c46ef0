"""The loads L1, L2, L3 and rest, run on one engine: what it did and what it cost, as named figures."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bench.contestants.engine import Engine
from bench.databases import Product
from bench.processes import processor_seconds

WARM_UP = 50
FEWEST = 20
STATISTICS_LAG = 11.0
"""Seconds until PostgreSQL's idle sessions have reported what they did."""
WAITERS_SETTLE = 3.0

RATE = "L1 in flight, workflows/s"
A_CALL_EACH = "L1 a call each, workflows/s"
ALONE = "L1 alone, p50 ms"
SLEEPERS = "L2 late, p99 ms"
SIGNALS_ALONE = "L3 alone, p50 ms"
SIGNALS_RATE = "L3 at once, events/s"
COST = "L1 in flight, processor us/workflow, "
CORES = "L1 in flight, cores busy"

Figures: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each load."""

    instances: int
    in_flight: int
    alone: int
    sleepers: int
    signals: int
    signals_alone: int
    rest: float

    def times(self, share: float) -> Sizes:
        """The same for a slower engine: fewer of everything, but as many in flight."""
        names = ("instances", "alone", "sleepers", "signals", "signals_alone")
        wanted = {name: getattr(self, name) for name in names}
        return replace(self, **{name: min(n, max(FEWEST, round(n * share))) for name, n in wanted.items()})


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: an engine on a product."""

    engine: Engine
    product: Product
    url: str

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have the engine's client run a load."""
        return await self.engine.order(load, **sizes)

    def processor_seconds(self) -> dict[str, float]:
        """What each process has used so far, by role; PostgreSQL's backends count as one."""
        used = {role: processor_seconds(process) for role, process in self.engine.processes.items()}
        postmaster = self.product.postmaster()
        if postmaster is not None:
            used[self.product.title] = processor_seconds(postmaster)
        return used


async def run_all(subject: Subject, sizes: Sizes, chosen: Iterable[str]) -> Figures:
    """Warm up, then run the chosen loads one after the other."""
    await subject.order("in_flight", instances=WARM_UP, in_flight=WARM_UP)
    figures: Figures = {}
    for name in chosen:
        for load in LOADS[name]:
            figures |= await load(subject, sizes)
    return figures


async def in_flight(subject: Subject, sizes: Sizes) -> Figures:
    """L1: three-step workflows with so many in flight, and where the processors' time goes meanwhile."""
    number = sizes.instances
    used, wrote, began = subject.processor_seconds(), subject.product.write_transactions(), time.perf_counter()
    done = await subject.order("in_flight", instances=number, in_flight=sizes.in_flight)
    elapsed = time.perf_counter() - began
    now_used, now_wrote = subject.processor_seconds(), subject.product.write_transactions()
    costs = {role: now_used[role] - used[role] for role in used}
    figures = {RATE: number / done["seconds"]}
    figures |= {COST + role: cost / number * 1e6 for role, cost in costs.items()}
    figures[CORES] = sum(costs.values()) / elapsed
    if wrote is not None and now_wrote is not None:
        figures["L1 in flight, writing transactions/workflow"] = (now_wrote - wrote) / number
    return figures


async def alone(subject: Subject, sizes: Sizes) -> Figures:
    """L1: one at a time."""
    used = subject.processor_seconds()
    done = await subject.order("one_by_one", instances=sizes.alone)
    now_used = subject.processor_seconds()
    costs = {role: (now_used[role] - used[role]) / sizes.alone * 1e6 for role in used}
    figures = {f"L1 alone, processor us/workflow, {role}": cost for role, cost in costs.items()}
    return _percentiles("L1 alone", _seconds(done["spans"])) | figures


async def a_call_each(subject: Subject, sizes: Sizes) -> Figures:
    """L1: one call per workflow, which answers with the result, where that is not the client's natural way anyway."""
    if "a_call_each" not in subject.engine.client.facts["loads"]:
        return {}
    done = await subject.order("a_call_each", instances=sizes.instances, in_flight=sizes.in_flight)
    return {A_CALL_EACH: sizes.instances / done["seconds"]}


async def sleepers(subject: Subject, sizes: Sizes) -> Figures:
    """L2: how late they wake that all went to sleep at once."""
    done = await subject.order("sleepers", instances=sizes.sleepers)
    return _percentiles("L2 late", done["lateness"])


async def signals(subject: Subject, sizes: Sizes) -> Figures:
    """L3: from sending an event to the result."""
    number = sizes.signals
    done = await subject.order("signals", instances=number, alone=sizes.signals_alone, settle=WAITERS_SETTLE)
    return _percentiles("L3 alone", _seconds(done["alone"])) | {
        SIGNALS_RATE: (number - sizes.signals_alone) / done["seconds"]
    }


async def rest(subject: Subject, sizes: Sizes) -> Figures:
    """What the engine does while nothing is asked of it."""
    await asyncio.sleep(STATISTICS_LAG)
    used, seen = subject.processor_seconds(), subject.product.transactions(subject.url)
    await asyncio.sleep(sizes.rest)
    now_used, now_seen = subject.processor_seconds(), subject.product.transactions(subject.url)
    figures = {f"idle, processor ms/s, {role}": (now_used[role] - used[role]) / sizes.rest * 1000 for role in used}
    if seen is not None and now_seen is not None:
        figures["idle, transactions/s"] = (now_seen - seen) / sizes.rest
    for role, process in subject.engine.processes.items():
        figures[f"idle, memory MB, {role}"] = process.memory_info().rss / 1e6
    return figures


Load: TypeAlias = Callable[[Subject, Sizes], Awaitable[Figures]]
LOADS: dict[str, Sequence[Load]] = {
    "l1": (in_flight, alone, a_call_each),
    "l2": (sleepers,),
    "l3": (signals,),
    "idle": (rest,),
}


def _seconds(spans: Iterable[tuple[float, float]]) -> list[float]:
    return [ended - began for began, ended in spans]


def _percentiles(what: str, seconds: Sequence[float]) -> Figures:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{what}, p50 ms": cuts[49] * 1000, f"{what}, p99 ms": cuts[98] * 1000}
