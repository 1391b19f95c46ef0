"""The scenarios that every promise rests on: the whole workload under one kind of fault each."""

from __future__ import annotations

from tests.chaos.faults.database import ClockStep, DatabaseRestart
from tests.chaos.faults.kind import Nothing
from tests.chaos.faults.network import Partition, Storm
from tests.chaos.faults.processes import Drain, Freeze
from tests.chaos.scenarios.parts import KILLS, LONG_BODIES, SQLITE
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

PROMISES = (
    Scenario(
        "kill-postgresql",
        "kill -9 of a random worker or server, 20 times",
        schedule=(Cycle(KILLS, every=1.0, times=20),),
        overlaps={"takeovers": 10},
    ),
    Scenario(
        "kill-sqlite",
        "kill -9 of a random worker or of the only server, 20 times",
        SQLITE,
        schedule=(Cycle(KILLS, every=1.0, times=20),),
        overlaps={"takeovers": 5},
    ),
    Scenario(
        "database-crash",
        "PostgreSQL crashes and restarts, 20 times",
        schedule=(Cycle((DatabaseRestart("F20"),), every=-0.8, times=20),),
        overlaps={"repeats": 20},
    ),
    Scenario(
        "frozen-server",
        "SIGSTOP of a server for three leases, again and again",
        schedule=(Cycle((Freeze("F06", "server"),), every=-1.0, times=5),),
    ),
    Scenario(
        "frozen-worker",
        "SIGSTOP of a worker for one lease or three: it wakes as a zombie and reports what is no longer its own",
        Topology(workers=6, zombies=3),
        LONG_BODIES,
        # One that wakes soon after its lease meets its successor in the middle of the same body.
        schedule=(Cycle((Freeze("F02", "worker"), Freeze("F02", "worker", 1.2)), every=1.0, times=20),),
        overlaps={"takeovers": 20, "zombie-reports": 20, "stale_reports": 20},
    ),
    Scenario(
        "partition",
        "a worker or a server hears nobody, or is heard by nobody, for three leases",
        schedule=(
            Cycle(
                (
                    Partition("F50", "worker"),
                    Partition("F51", "worker", "s2c"),
                    Partition("F51", "worker", "c2s"),
                    Partition("F51", "server", "s2c"),
                    Partition("F51", "server", "c2s"),
                ),
                every=-0.5,
                times=6,
            ),
        ),
    ),
    Scenario(
        "execute-then-fail",
        "one commit in twenty is done and said to have failed, and replies to COMMIT are cut off",
        Topology(store={"execute_then_fail": 0.05}),
        schedule=(
            Cycle(
                (Storm("F28", "server-*/database", "cut_reply", 1.0, 3, {"after": "COMMIT", "odds": 0.03}),),
                every=-1.0,
                times=10,
            ),
        ),
        overlaps={"execute_then_fail": 50, "repeats": 20},
    ),
    Scenario(
        "execute-then-fail-sqlite",
        "one commit in twenty is done and said to have failed",
        Topology("sqlite", servers=1, store={"execute_then_fail": 0.05}),
        schedule=(Cycle((Nothing("F28", 20.0),), every=-0.1),),
        overlaps={"execute_then_fail": 50, "repeats": 20},
    ),
    Scenario(
        "serializable",
        "the database's default is SERIALIZABLE, and one transaction in twenty is refused for a conflict, under kills",
        Topology(serializable=True, store={"conflict": 0.05}),
        schedule=(Cycle((Nothing("F27", 1.0),), every=-0.1), Cycle(KILLS, every=2.0, times=10)),
        overlaps={"conflict": 50},
    ),
    Scenario(
        "clock-steps",
        "the database's clock jumps by 90 seconds, forth and back",
        Topology(clock=True),
        schedule=(Cycle((ClockStep("F72", 90.0),), every=-4.0), Cycle((ClockStep("F72", -90.0),), every=-4.0)) * 3,
        drain_leases=45.0,  # what was to wake while the clock was ahead wakes 90 seconds later
    ),
    Scenario(
        "rolling-restart",
        "SIGTERM of one server after the other, and of workers: nobody is lost, so nothing is done twice",
        schedule=(Cycle((Drain("F08", "server", next_one=True), Drain("F04", "worker")), every=-0.5, times=12),),
        once=True,
    ),
    Scenario(
        "event-deadline",
        "events that are stored within milliseconds of the deadline, with commits that take their time",
        Topology(servers=2, workers=2, store={"commit_ms": 20.0}),
        (Orders(instances=1500, seconds=135.0, kind="race", twice=0.0, aim_ms=6.0, shots=8),),
        schedule=(Cycle((Nothing("F80", 45.0),), every=-0.1),),
        overlaps={"near-deadline": 2000},
    ),
)
