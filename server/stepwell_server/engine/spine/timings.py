"""Measurements of the engine: stages of groups, claims, leases. Plain numbers, which telemetry serves.

The event loop alone writes them, so that they need no lock: a group costs a few microseconds, a call a fifth of one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.times import SECOND

STAGE_SECONDS = (
    2e-5,
    5e-5,
    1e-4,
    2e-4,
    5e-4,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
)
LATE_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0, 3600.0)
GROUP_CALLS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class Stage(StrEnum):
    """Where a hot call spends its time, in this order."""

    INBOX = "inbox"
    LOCK = "lock"
    READ = "read"
    DECIDE = "decide"
    WRITE = "write"
    CLAIM = "claim"
    COMMIT = "commit"
    DELIVER = "deliver"


class Way(StrEnum):
    """How calls are committed: with others, or one alone in a transaction that may wait for its lock."""

    HOT = "hot"
    SLOW = "slow"
    EXPRESS = "express"
    """Decided by images, and written without being read."""


@dataclass(slots=True, eq=False)
class Histogram:
    """How many values came, by size: up to each of these bounds, and above the last one."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value. A value that equals a bound is within it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Measured:
    """One attempt to commit a group, measured while it is under way: a rollback loses it with all else."""

    __slots__ = ("_at", "began", "born", "claimed", "seconds")

    def __init__(self) -> None:
        self.began = self._at = perf_counter()
        self.seconds: dict[Stage, float] = {}
        self.born: Sequence[Task] = ()
        """Tasks that were leased when they were created."""
        self.claimed: Sequence[Task] = ()

    def end(self, stage: Stage) -> None:
        """The stage that followed the last one is over."""
        now = perf_counter()
        self.seconds[stage] = now - self._at
        self._at = now


def _per_kind() -> dict[TaskKind, int]:
    return dict.fromkeys(TaskKind, 0)


@dataclass(slots=True, eq=False)
class Timings:
    """One per replica. All of it counts from the start of the process."""

    stages: Mapping[Stage, Histogram] = field(default_factory=lambda: {one: Histogram(STAGE_SECONDS) for one in Stage})
    group_calls: Mapping[Way, Histogram] = field(default_factory=lambda: {one: Histogram(GROUP_CALLS) for one in Way})
    undecided: int = 0
    """Calls that were put back, as another transaction had their task locked."""
    missed: int = 0
    """Express calls whose image was outdated: they went the ordinary way."""
    claimed: dict[TaskKind, int] = field(default_factory=_per_kind)
    """Tasks that were leased to workers, those included that were born with a lease."""
    lateness: Mapping[TaskKind, Histogram] = field(
        default_factory=lambda: {one: Histogram(LATE_SECONDS) for one in TaskKind}
    )
    """Of tasks that were claimed: how long they had been due."""
    lapsed: dict[TaskKind, int] = field(default_factory=_per_kind)
    """Leases that ended because their worker was lost."""
    extended: int = 0
    """Times that all leases were extended, because for a while none could be renewed."""
    stale: int = 0
    """Frames that told a worker that a lease is no longer its own."""

    def note_group(self, way: Way, measured: Measured, arrived: Sequence[float], undecided: int = 0) -> None:
        """A group of calls that arrived at these times is committed, and its answers are given."""
        measured.end(Stage.DELIVER)
        for stage, seconds in measured.seconds.items():
            self.stages[stage].add(seconds)
        inbox = self.stages[Stage.INBOX]
        for at in arrived:
            inbox.add(measured.began - at)
        self.group_calls[way].add(len(arrived))
        self.undecided += undecided
        for task in measured.born:
            self.claimed[task.handler.kind] += 1
        for task in measured.claimed:
            self.claimed[task.handler.kind] += 1
            late = (task.claimed_at or task.run_at) - task.run_at
            self.lateness[task.handler.kind].add(late / SECOND)

    def note_sweep(self, lapsed: Iterable[Task], *, extended: bool) -> None:
        """A sweep has taken these leases back, and perhaps extended all others."""
        for task in lapsed:
            self.lapsed[task.handler.kind] += 1
        self.extended += extended
