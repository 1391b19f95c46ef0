"""Callers that are in each other's way."""

from __future__ import annotations

from tests.chaos.faults.kind import Nothing
from tests.chaos.faults.processes import Kill
from tests.chaos.scenarios.parts import KILLS
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

RACES = (
    Scenario(
        "same-id",
        "twenty clients create each instance",
        workload=(Orders(instances=100, seconds=20.0, rivals=19),),
        schedule=(Cycle((Nothing("F82", 7.0),), every=-0.1),),
    ),
    Scenario(
        "lifecycle",
        "instances are paused, resumed, terminated and restarted on their way, under kills",
        workload=(Orders(instances=400, seconds=50.0, lifecycle=0.8),),
        schedule=(Cycle((Nothing("F83", 1.0),), every=-0.1), Cycle(KILLS, every=2.0, times=8)),
    ),
    Scenario(
        "attempt-ceiling",
        "workers are killed so often that steps run out of their two attempts",
        Topology(workers=8),
        (Orders(instances=150, seconds=30.0, body_ms=9000.0, attempts=2, failures=0),),
        schedule=(
            Cycle((Nothing("F81", 0.1),), every=-0.1),
            Cycle((Kill("F01", "worker", 0.0),), every=0.5, times=30),
        ),
        overlaps={"takeovers": 30, "exhausted": 10},
        drain_leases=20.0,  # what is begun last has four long bodies before it
    ),
    Scenario(
        "cancel-storm",
        "clients give up their calls after some milliseconds, and ask again",
        workload=(Orders(instances=400, seconds=30.0, hasty=1.0, lifecycle=0.5),),
        schedule=(Cycle((Nothing("F87", 11.0),), every=-0.1),),
        overlaps={"repeats": 100},
    ),
)
