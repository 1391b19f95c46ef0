"""Links that are slow, lossy, or only look open."""

from __future__ import annotations

from tests.chaos.faults.kind import Nothing
from tests.chaos.faults.network import Partition, Storm
from tests.chaos.scenarios.parts import SMALL
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology

NETWORK = (
    Scenario(
        "resets",
        "connections are reset, and for a while refused",
        workload=SMALL,
        schedule=(
            Cycle(
                (
                    Storm("F52", "*/server-*", "reset", 0.1, 6),
                    Storm("F52", "*/server-*", "cut", 0.3, 4),
                    Storm("F52", "server-*/database", "reset", 0.1, 2),
                ),
                every=-0.3,
                times=20,
            ),
        ),
    ),
    Scenario(
        "thin-pipe",
        "8 kB/s between workers and servers",
        workload=SMALL,
        schedule=(Cycle((Storm("F53", "worker-*/server-*", "rate", 4.0, 6, {"bytes": 8000}),), -0.5, 3),),
        excuse=False,
    ),
    Scenario(
        "delay",
        "every link takes 200 ± 150 ms",
        workload=SMALL,
        schedule=(
            Cycle((Storm("F54", "*/server-*", "delay", 4.0, 99, {"ms": 200, "jitter": 150}),), -0.5, 2),
            Cycle((Storm("F54", "*/database", "delay", 3.0, 99, {"ms": 20, "jitter": 15}),), -0.5, 2),
        ),
        takeovers_at_most=0,
        excuse=False,
    ),
    Scenario(
        "half-open",
        "connections that look open and carry nothing, for eight leases",
        workload=SMALL,
        schedule=(
            Cycle(
                (Storm("F55", "worker-*/server-*", "blackhole", 8.0, 4), Partition("F55", "server", leases=8.0)),
                -1.0,
                3,
            ),
        ),
        drain_leases=15.0,
    ),
    Scenario(
        "database-half-open",
        "a server's connections to the database carry nothing for four leases",
        workload=SMALL,
        schedule=(
            Cycle(
                (Storm("F55", "server-*/database", "blackhole", 4.0), Storm("F55", "server-*/database", "hold", 4.0)),
                -1.0,
                4,
            ),
        ),
    ),
    Scenario(
        "lost-replies",
        "replies of calls are lost with their connections",
        workload=SMALL,
        schedule=(Cycle((Storm("F56", "driver/server-*", "cut_reply", 2.0, 3, {"after": "", "odds": 0.1}),), -0.5, 6),),
        overlaps={"repeats": 20},
    ),
    Scenario(
        "idle-killer",
        "connections on which nothing moves for one and a half seconds are reset",
        workload=SMALL,
        schedule=(Cycle((Storm("F57", "*", "idle", 12.0, 99, {"seconds": 1.5}),), -0.1),),
        excuse=False,
    ),
    Scenario(
        "goaway",
        "connections are asked to go after two seconds",
        Topology(store={"connection_age_ms": 2000}),
        SMALL,
        schedule=(Cycle((Nothing("F58", 12.0),), every=-0.1),),
    ),
)
