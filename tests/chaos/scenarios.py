"""The scenarios: data over one machine. `python -m tests.chaos --list` shows them."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.faults import Kill
from tests.chaos.model import Workload
from tests.chaos.run import Cycle, Scenario
from tests.chaos.site import Topology

KILLS = (Kill("F01", "worker"), Kill("F05", "server"))

SCENARIOS = {
    one.name: one
    for one in (
        Scenario(
            "kill-sqlite",
            "kill -9 of a random worker or of the server",
            Topology("sqlite", servers=1),
            schedule=(Cycle(KILLS, every=1.0, times=20),),
        ),
        Scenario(
            "kill-postgresql",
            "kill -9 of a random worker or server",
            schedule=(Cycle(KILLS, every=1.0, times=20),),
        ),
    )
}


def shortened(scenario: Scenario, instances: int = 60, rounds: int = 4) -> Scenario:
    """The same with less of everything: for a look, and for `make test`."""
    cycles = tuple(replace(cycle, times=min(cycle.times, rounds)) for cycle in scenario.schedule)
    workload: Workload = replace(scenario.workload, instances=instances, seconds=min(scenario.workload.seconds, 10.0))
    return replace(scenario, schedule=cycles, workload=workload)
