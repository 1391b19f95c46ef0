"""The loads L1, L2, L3 and rest, run on one engine: what it did and what it cost, as named figures."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import psutil

from bench.databases import Product
from bench.engines import Engine

WARM_UP = 50
STATISTICS_LAG = 11.0
"""Seconds until PostgreSQL's idle sessions have reported what they did."""
WAITERS_SETTLE = 3.0
RATE = "L1 all at once, workflows/s"
"""The figure that engines are compared by."""

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


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: an engine on a database."""

    engine: Engine
    product: Product
    url: str

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have the engine's driver run a load."""
        return await self.engine.order(load, **sizes)

    def processor_seconds(self) -> dict[str, float]:
        """What each process has used so far, by role."""
        used = {role: _own_seconds(process) for role, process in self.engine.processes.items()}
        postmaster = self.product.postmaster()
        if postmaster is not None:
            used[self.product.title] = _family_seconds(postmaster)
        return used


async def warm_up(subject: Subject) -> None:
    """Let connections open and code load, which no figure shall show."""
    await subject.order("burst", instances=WARM_UP, in_flight=WARM_UP)


async def burst(subject: Subject, sizes: Sizes) -> Figures:
    """L1: three-step workflows as fast as possible, and where the processors' time goes meanwhile."""
    number = sizes.instances
    used, wrote, began = subject.processor_seconds(), subject.product.write_transactions(), time.perf_counter()
    done = await subject.order("burst", instances=number, in_flight=number)
    elapsed = time.perf_counter() - began
    now_used, now_wrote = subject.processor_seconds(), subject.product.write_transactions()
    costs = {role: now_used[role] - used[role] for role in used}
    figures = {RATE: number / done["seconds"]}
    figures |= {f"L1 processor us/workflow, {role}": cost / number * 1e6 for role, cost in costs.items()}
    figures["L1 cores busy"] = sum(costs.values()) / elapsed
    if wrote is not None and now_wrote is not None:
        figures["L1 writing transactions/workflow"] = (now_wrote - wrote) / number
    return figures


async def steady(subject: Subject, sizes: Sizes) -> Figures:
    """L1: with so many in flight, then one at a time."""
    done = await subject.order("burst", instances=sizes.instances, in_flight=sizes.in_flight)
    alone = await subject.order("one_by_one", instances=sizes.alone)
    rate = sizes.instances / done["seconds"]
    in_flight = f"L1 {sizes.in_flight} in flight, "
    return {in_flight + "workflows/s": rate, in_flight + "steps/s": 3 * rate} | _percentiles(
        "L1 one at a time", alone["latencies"]
    )


async def unary(subject: Subject, sizes: Sizes) -> Figures:
    """L1: one call per workflow, which waits for the result: what a client without the SDK's coalescing gets."""
    done = await subject.order("unary", instances=sizes.instances, in_flight=sizes.in_flight)
    return {f"L1 {sizes.in_flight} in flight, a call each, workflows/s": sizes.instances / done["seconds"]}


async def sleepers(subject: Subject, sizes: Sizes) -> Figures:
    """L2: how late they wake who all went to sleep at once."""
    done = await subject.order("sleepers", instances=sizes.sleepers)
    return _percentiles(f"L2 {sizes.sleepers} sleepers late", done["lateness"])


async def signals(subject: Subject, sizes: Sizes) -> Figures:
    """L3: from sending an event to the result."""
    done = await subject.order("signals", instances=sizes.signals, alone=sizes.signals_alone, settle=WAITERS_SETTLE)
    rate = {"L3 all at once, events/s": len(done["burst"]) / done["burst_seconds"]}
    return _percentiles("L3 one at a time", done["alone"]) | rate | _percentiles("L3 all at once", done["burst"])


async def rest(subject: Subject, sizes: Sizes) -> Figures:
    """What the engine does while nobody asks for anything."""
    await asyncio.sleep(STATISTICS_LAG)
    used, seen = subject.processor_seconds(), subject.product.transactions(subject.url)
    await asyncio.sleep(sizes.rest)
    now_used, now_seen = subject.processor_seconds(), subject.product.transactions(subject.url)
    figures = {f"idle processor ms/s, {role}": (now_used[role] - used[role]) / sizes.rest * 1000 for role in used}
    if seen is not None and now_seen is not None:
        figures["idle transactions/s"] = (now_seen - seen) / sizes.rest
    for role, process in subject.engine.processes.items():
        figures[f"idle memory MB, {role}"] = process.memory_info().rss / 1e6
    return figures


def _percentiles(what: str, seconds: Sequence[float]) -> Figures:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{what}, p50 ms": cuts[49] * 1000, f"{what}, p99 ms": cuts[98] * 1000}


def _own_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _family_seconds(parent: psutil.Process) -> float:
    """Of a process and its children, those that have ended included."""
    times = parent.cpu_times()
    seconds = float(times.user + times.system + times.children_user + times.children_system)
    for child in parent.children():
        with suppress(psutil.NoSuchProcess):
            seconds += _own_seconds(child)
    return seconds
