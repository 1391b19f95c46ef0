"""Clocks that are wrong, and many timers at once."""

from __future__ import annotations

from tests.chaos.faults.database import ClockStep
from tests.chaos.faults.kind import Nothing
from tests.chaos.scenarios.parts import KILLS, SMALL
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
"""Where Debian's package puts it."""
TEN_MINUTES_AHEAD = {"LD_PRELOAD": FAKETIME, "FAKETIME": "+10m", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
TEN_MINUTES_BEHIND = TEN_MINUTES_AHEAD | {"FAKETIME": "-10m"}

TIME = (
    Scenario(
        "server-clock",
        "one server's clock is ten minutes ahead, another's behind",
        Topology(environment={"server-1": TEN_MINUTES_AHEAD, "server-2": TEN_MINUTES_BEHIND}),
        SMALL,
        schedule=(Cycle((Nothing("F70", 1.0),), every=-0.1), Cycle(KILLS, every=1.0, times=8)),
        needs=(FAKETIME,),
    ),
    Scenario(
        "worker-clock",
        "workers' clocks are ten minutes ahead",
        Topology(environment={"worker": TEN_MINUTES_AHEAD}),
        SMALL,
        schedule=(Cycle((Nothing("F71", 1.0),), every=-0.1), Cycle(KILLS, every=1.0, times=8)),
        needs=(FAKETIME,),
    ),
    Scenario(
        "clock-stands",
        "the database's clock stands for three leases",
        Topology(clock=True),
        SMALL,
        schedule=(Cycle((ClockStep("F73", stands=3.0),), every=-2.0, times=2),),
    ),
    Scenario(
        "same-instant",
        "thousands of naps end at one instant",
        workload=(Orders(instances=2000, seconds=50.0, same_instant=True, aimed=0.0, twice=0.0, body_ms=5.0),),
        schedule=(Cycle((Nothing("F75", 20.0),), every=-0.1),),
        drain_leases=30.0,
        patience=20.0,  # thousands take turns in the slots of four workers
    ),
)
