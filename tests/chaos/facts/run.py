"""Facts about the run itself: what it meant to do, what went wrong, and what was counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.facts.fact import Fact, Row

NOBODY = "-"
"""The target of a fault that breaks nothing."""


@dataclass(frozen=True, slots=True)
class Plan(Fact):
    """What the run is about, written first. A run that did much less than this proves nothing."""

    seed: int
    lease_us: int
    database: Literal["sqlite", "postgresql"]
    operations: dict[str, int]
    """Requests that the clients mean to make, by op. Reads are not planned, and one that is repeated is still one."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault ("F01") must have begun, at least."""
    overlaps: dict[str, int] = field(default_factory=dict)
    """How often what makes a fault interesting must have happened: names of `Promises.overlaps`, or of `Count`s."""
    least_per_operation: int = 50
    """Fewest acknowledged calls of each planned op; less if less was planned."""
    lateness_us: int = 0
    """How late a timer may fire while nothing is broken. 0: one lease."""
    heal_us: int = 0
    """How long after a fault its consequences are excused. 0: two leases."""
    arrivals_us: int = 0
    """How long after the run was warm the last order comes."""
    drain_leases: float = 10.0
    """Rest must come within this many leases of the heal and of the last order."""
    slots: int = 0
    """Runs that one worker takes at once. 0: not checked."""
    clock_steps: bool = False
    """The database's clock is moved during the run, so that its stamps go back."""
    excuse: bool = True
    """What is late during a fault is excused. False: it may be later only by as long as a fault may take to heal."""
    once: bool = False
    """Nothing may be executed twice: nobody was lost."""
    takeovers_at_most: int | None = None
    """Most leases that may end because their holders were lost. None: any number."""
    may_give_up: bool = False
    """Leases that workers gave up by themselves do not count for that."""


@dataclass(frozen=True, slots=True)
class Stage(Fact):
    """A part of the run begins: "warm", "faults", "heal", "quiet" (all came to rest), "snapshot"."""

    name: Literal["warm", "faults", "heal", "quiet", "snapshot"]
    mono_ns: int
    wall_us: int
    """The wall clock of a process whose time is not tampered with."""


@dataclass(frozen=True, slots=True)
class Fault(Fact):
    """The nemesis begins or ends a fault. One that has no length is only begun."""

    fault: str
    """As in the matrix: "F01"."""
    target: str
    """NOBODY: nothing is broken; what goes wrong is part of the site or the workload."""
    phase: Literal["begin", "end"]
    mono_ns: int
    wall_us: int
    details: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit(Fact):
    """A process of the run has ended. `ordered`: the nemesis or the end of the run wanted it."""

    process: str
    code: int
    ordered: bool
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Trouble(Fact):
    """A process wrote what it never should: a traceback, a task that was never awaited."""

    process: str
    text: str
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Count(Fact):
    """Something was counted where it happened: stale frames refused, replies dropped. Counts of one name add up."""

    name: str
    count: int
