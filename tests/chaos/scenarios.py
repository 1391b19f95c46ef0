"""All scenarios by name. `make chaos ARGS=--list` shows them, `docs/operations/faults.md` explains them."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.catalogue import CATALOGUE
from tests.chaos.matrix import MATRIX
from tests.chaos.run import Scenario

SCENARIOS = {one.name: one for one in (*CATALOGUE, *MATRIX)}


def shortened(scenario: Scenario, instances: int = 60, rounds: int = 4, seconds: float = 10.0) -> Scenario:
    """The same with less of everything, and nothing that must have happened often: for a look."""
    cycles = tuple(replace(cycle, times=min(cycle.times, rounds)) for cycle in scenario.schedule)
    workload = replace(scenario.workload, instances=instances, seconds=min(scenario.workload.seconds, seconds))
    return replace(scenario, schedule=cycles, workload=workload, overlaps={})
