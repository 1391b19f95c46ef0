"""What a scenario is: a site, a workload, what goes wrong, and what of that must have happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.chaos.faults.kind import Kind
from tests.chaos.site.site import Topology
from tests.chaos.workload.load import Load
from tests.chaos.workload.workflows.load import Orders


@dataclass(frozen=True, slots=True)
class Cycle:
    """These faults in some order, again and again: every so many leases, so often."""

    faults: tuple[Kind, ...]
    every: float = 1.0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is there, what it does, what goes wrong, and what of it must have happened to count."""

    name: str
    about: str
    topology: Topology = field(default_factory=Topology)
    workload: tuple[Load, ...] = (Orders(),)
    """At most one load of each primitive."""
    schedule: tuple[Cycle, ...] = ()
    overlaps: dict[str, int] = field(default_factory=dict)
    warm: float = 1.0
    """Leases before the first fault."""
    needs: tuple[str, ...] = ()
    """Tools of the machine without which it cannot be run."""
    drain_leases: float = 10.0
    patience: float = 1.0
    """Leases that a timer may be late while nothing is broken; more on a machine that is busy."""
    once: bool = False
    """Nothing may be executed twice: nobody was lost."""
    takeovers_at_most: int | None = None
    """Leases that may end because their holder seemed to be lost. None: as many as there are."""
    may_give_up: bool = False
    """Workers may stop by themselves what they cannot renew."""
    excuse: bool = True
    """Timers may be late while something is broken."""
    flat: bool = False
    """Nothing may have grown in the end: memory, descriptors, threads, tasks, and tables but for their rows."""


def draw(scenario: Scenario, seed: int) -> list[tuple[float, Kind]]:
    """The faults of a run in their order, each with the pause after it, in leases.

    None of a cycle comes again before all others of it had their turn.
    """
    rng = random.Random(f"schedule/{seed}")
    drawn: list[tuple[float, Kind]] = []
    for cycle in scenario.schedule:
        turns = -(-cycle.times // len(cycle.faults))
        kinds = [kind for _ in range(turns) for kind in rng.sample(cycle.faults, len(cycle.faults))]
        drawn += [(cycle.every, kind) for kind in kinds[: cycle.times]]
    return drawn
