"""Processes that die, stand or are starved."""

from __future__ import annotations

from tests.chaos.faults.database import DatabaseRestart
from tests.chaos.faults.processes import Block, CrashPoint, Freeze, Herd, Kill, Respawn, Starve
from tests.chaos.scenarios.parts import SMALL, SQLITE
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

CRASHES = tuple(
    CrashPoint("F10", f"{when}-commit/{label}", hit)
    for when in ("before", "after")
    for label in ("group", "sweep", "call", "read", "read-state", "refresh-wakes")
    for hit in (1, 3)
)
"""Transactions that this workload has. It sends no webhooks, waits for no locks and does not last until the pruning."""

PROCESSES = (
    Scenario(
        "short-freeze",
        "SIGSTOP of a worker for half a lease: nobody takes over",
        workload=SMALL,
        schedule=(Cycle((Freeze("F03", "worker", 0.5),), every=-0.5, times=10),),
        once=True,
    ),
    Scenario(
        "crash-points",
        "a server ends at each place around a commit",
        workload=(Orders(instances=700, seconds=180.0, lifecycle=0.3),),
        schedule=(Cycle(CRASHES, every=-0.1, times=len(CRASHES)),),
        overlaps={"crash_points": 12},
    ),
    Scenario(
        "slow-commits",
        "a server is killed, or PostgreSQL crashes, while commits take up to 50 ms: no answer is ahead of its commit",
        Topology(store={"commit_ms": 50.0}),
        SMALL,
        schedule=(Cycle((Kill("F05", "server"), DatabaseRestart("F20")), every=-0.5, times=12),),
    ),
    Scenario(
        "crash-points-sqlite",
        "the only server ends at each place around a commit",
        SQLITE,
        workload=(Orders(instances=700, seconds=180.0, lifecycle=0.3),),
        schedule=(Cycle(CRASHES, every=-0.1, times=len(CRASHES)),),
        overlaps={"crash_points": 12},
    ),
    Scenario(
        "blocked-loop",
        "the event loop of a server stands for two leases",
        Topology(store={"commit_ms": 0.0}),
        SMALL,
        schedule=(Cycle((Block("F11"),), every=-1.0, times=4),),
    ),
    Scenario(
        "starved",
        "a server or worker gets a tenth of its time, or half of it",
        workload=SMALL,
        schedule=(
            Cycle(tuple(Starve("F12", role, share) for role in ("server", "worker") for share in (0.1, 0.5)), -0.5, 4),
        ),
    ),
    Scenario(
        "poison",
        "a step that kills its worker, every time",
        Topology(mortal=True),
        workload=(Orders(instances=100, seconds=20.0, poison=12),),
        schedule=(Cycle((Respawn("F88", 15.0),), every=-0.1),),
        overlaps={"takeovers": 10},
    ),
    Scenario(
        "herd",
        "all servers end at once, everybody comes back at once, and so do 300 others",
        Topology(workers=12),
        SMALL,
        schedule=(Cycle((Herd("F62", "server", 0.5),), every=-3.0, times=3),),
        overlaps={"herd_welcomed": 900},
    ),
)
