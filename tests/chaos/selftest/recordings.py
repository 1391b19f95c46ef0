"""The recordings: short runs of the real system whose histories the self-test falsifies.

Together they hold everything that a lie needs a place for. A primitive adds a scenario of its own here.
"""

from __future__ import annotations

from tests.chaos.faults.database import DatabaseRestart
from tests.chaos.faults.kind import Nothing
from tests.chaos.faults.network import Storm
from tests.chaos.faults.processes import Freeze, Kill, KillAll, Respawn
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.hooks.load import Hooks
from tests.chaos.workload.workflows.load import Orders

WATCHED = {"watches": 2}
PATIENCE = {"drain_leases": 30.0, "patience": 4.0}
"""Nothing is measured here, and the machine may be busy."""

ORDERS = Scenario(
    "orders",
    "orders that are paused, terminated, restarted and sent events at deadlines, while workers die and freeze",
    Topology("postgresql", servers=2, workers=3, lease=2.0, zombies=1),
    (
        Orders(
            instances=24,
            seconds=10.0,
            rivals=1,
            aimed=0.5,
            twice=0.4,
            lifecycle=0.7,
            sleepers=1,
            body_ms=5000.0,
            hasty=0.5,
            failures=1,
        ),
    ),
    schedule=(
        Cycle((Storm("F56", "driver/server-*", "cut_reply", 6.0, 2, {"after": "", "odds": 0.2}),), every=0.0),
        Cycle((Freeze("F02", "worker-0", 1.2), Freeze("F02", "worker-1", 1.2)), every=-0.3, times=4),
        Cycle((KillAll("F01", "worker", 0.2),), every=-0.7, times=3),
        Cycle((DatabaseRestart("F20"),), every=-0.5),
        Cycle((Kill("F05", "server"),), every=-0.5),
        Cycle((Nothing("F75", 0.5),), every=-0.1),
    ),
    overlaps=WATCHED | {"takeovers": 2, "repeats": 2, "zombie-reports": 1},
    may_give_up=True,
    **PATIENCE,
)
POISON = Scenario(
    "poison",
    "steps that no worker survives, beside orders on a file whose workers die with them",
    Topology("sqlite", servers=1, workers=2, lease=2.0, mortal=True),
    (
        Orders(
            instances=14,
            seconds=8.0,
            rivals=1,
            twice=0.5,
            lifecycle=0.9,
            poison=3,
            sleepers=1,
            body_ms=5000.0,
            hasty=0.5,
        ),
    ),
    schedule=(Cycle((Respawn("F88", 8.0),), every=-0.1),),
    overlaps=WATCHED | {"takeovers": 2, "exhausted": 1},
    **PATIENCE,
)
HOOKS = Scenario(
    "hooks",
    "hooks at once and for later, one by one, with a worker and a server that die",
    Topology("sqlite", servers=1, workers=2, lease=2.0, dispatchers=("stream",), settings=("--dispatch", "external")),
    (
        Orders(instances=2, seconds=16.0, elsewhere=0.0),
        Hooks(number=10, seconds=16.0, hopeless=0.2, batch=1, ahead=60.0),
    ),
    schedule=(Cycle((Kill("F01", "worker"),), every=1.0), Cycle((Kill("F05", "server"),), every=1.0)),
    overlaps={"watches": 1},
    **PATIENCE,
)
RECORDINGS = {one.name: one for one in (ORDERS, POISON, HOOKS)}
