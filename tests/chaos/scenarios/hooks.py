"""Hooks, and the dispatchers that their servers need."""

from __future__ import annotations

from tests.chaos.faults.processes import Kill, KillAll
from tests.chaos.scenarios.parts import KILLS
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.hooks.load import Hooks
from tests.chaos.workload.workflows.load import Orders

SIDECARS = Topology(servers=2, workers=2, dispatchers=("stream", "stream", "poll"), settings=("--dispatch", "external"))

HOOKS = (
    Scenario(
        "hooks",
        "10,000 hooks, half of them for later; servers that need dispatchers; kill -9 of anybody, and of all of these",
        SIDECARS,
        (Orders(instances=40, seconds=50.0, elsewhere=0.0), Hooks(seconds=50.0)),  # elsewhere there is no dispatcher
        schedule=(
            Cycle((*KILLS, Kill("F09", "dispatcher")), every=1.0, times=20),
            Cycle((KillAll("F09", "dispatcher"),), every=-1.0, times=2),
        ),
        drain_leases=30.0,
        patience=5.0,  # a dispatcher that polls does so every five seconds, and it may be the only one left
    ),
)
