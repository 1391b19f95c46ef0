"""All scenarios by name. `make chaos ARGS=--list` shows them, `docs/operations/faults.md` explains them."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.faults.database import DatabaseRestart
from tests.chaos.faults.processes import Kill
from tests.chaos.scenarios.database import DATABASE
from tests.chaos.scenarios.file import FILE
from tests.chaos.scenarios.hooks import HOOKS
from tests.chaos.scenarios.network import NETWORK
from tests.chaos.scenarios.processes import PROCESSES
from tests.chaos.scenarios.promises import PROMISES
from tests.chaos.scenarios.races import RACES
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.scenarios.time import TIME
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

SCANS = 10
"""Scans of both namespaces that a run must have finished."""
WATCHES = 50
"""Instances that a run must have watched to their ends; half of them where there are fewer."""


def soak(minutes: float) -> Scenario:
    """Half the usual load for a long time, with a fault of each kind every minute; the first of each role is spared."""
    rounds = max(1, int(minutes))
    faults = (Kill("F01", "worker-3"), Kill("F05", "server-2"), DatabaseRestart("F20"))
    return Scenario(
        "soak",
        "half the load for a long time: memory, descriptors, tasks and tables stay as they are",
        Topology(store={"commit_ms": 0.0}),
        (Orders(instances=round(minutes * 60 * 2), seconds=minutes * 60),),
        schedule=tuple(Cycle((fault,), every=-6.0) for _ in range(rounds) for fault in faults),
        flat=True,
    )


def looked_at(scenario: Scenario) -> Scenario:
    """The same, to be believed only if watches and scans came to their end.

    Of scans those of a file need not: it has one server, which may be away too long.
    """
    looks = {"watches": min(WATCHES, sum(load.watched for load in scenario.workload) // 2)}
    if scenario.topology.database != "sqlite":
        looks["scans"] = SCANS
    return replace(scenario, overlaps=looks | scenario.overlaps)


EVERY = (*PROMISES, *HOOKS, *PROCESSES, *DATABASE, *FILE, *NETWORK, *TIME, *RACES, soak(30.0))
"""A primitive adds its own."""
SCENARIOS = {one.name: looked_at(one) for one in EVERY}


def slowed(scenario: Scenario, lease: float) -> Scenario:
    """The same with other leases: all times of faults follow, and so does the time over which orders arrive."""
    ratio = lease / scenario.topology.lease
    workload = tuple(replace(load, seconds=load.seconds * ratio) for load in scenario.workload)
    return replace(scenario, topology=replace(scenario.topology, lease=lease), workload=workload)


def shortened(scenario: Scenario, instances: int = 60, rounds: int = 4, seconds: float = 10.0) -> Scenario:
    """The same with less of everything, and nothing that must have happened often: for a look."""
    cycles = tuple(replace(cycle, times=min(cycle.times, rounds)) for cycle in scenario.schedule)
    workload = tuple(load.shortened(instances, seconds) for load in scenario.workload)
    return replace(scenario, schedule=cycles, workload=workload, overlaps={})
