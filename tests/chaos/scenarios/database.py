"""PostgreSQL that restarts, stands, is locked or refuses."""

from __future__ import annotations

from tests.chaos.faults.database import DatabaseRestart, ForeignLock, FrozenBackend, LostListener, Sql
from tests.chaos.faults.kind import Nothing
from tests.chaos.faults.processes import Kill
from tests.chaos.scenarios.parts import LONG_BODIES, SMALL
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology

DATABASE = (
    Scenario(
        "database-restart",
        "PostgreSQL restarts with a word to every session, 10 times",
        workload=SMALL,
        schedule=(Cycle((DatabaseRestart("F21", "fast"),), every=-0.7, times=10),),
    ),
    Scenario(
        "database-outage",
        "PostgreSQL is away for 20 leases: nothing is taken away that was not given up",
        workload=LONG_BODIES,
        schedule=(Cycle((DatabaseRestart("F22", "fast", 20.0),), every=-1.0),),
        takeovers_at_most=0,
        may_give_up=True,
    ),
    Scenario(
        "frozen-backend",
        "SIGSTOP of a database session in the middle of a transaction",
        workload=SMALL,
        schedule=(Cycle((FrozenBackend("F23"),), every=-0.5, times=6),),
    ),
    Scenario(
        "lost-listener",
        "the session that listens for hints is ended, every second",
        workload=SMALL,
        schedule=(Cycle((LostListener("F24"),), every=-0.01, times=30),),
        overlaps={"listeners_dropped": 20},
        excuse=False,
    ),
    Scenario(
        "lost-hints",
        "no replica ever hears of another's commits, and servers die: only the sweep knows",
        Topology(store={"lost_hints": 1.0}),
        SMALL,
        schedule=(Cycle((Nothing("F24", 1.0),), every=-0.1), Cycle((Kill("F05", "server"),), every=2.0, times=6)),
        overlaps={"lost_hints": 50},
    ),
    Scenario(
        "foreign-lock",
        "a stranger locks the tables, then rows",
        workload=SMALL,
        schedule=(
            Cycle(
                (
                    ForeignLock("F25", "LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE"),
                    ForeignLock("F25", "SELECT * FROM tasks ORDER BY id LIMIT 20 FOR UPDATE"),
                    ForeignLock("F25", "LOCK TABLE lease_clock IN EXCLUSIVE MODE"),
                ),
                every=-0.5,
                times=5,
            ),
        ),
    ),
    Scenario(
        "old-snapshot",
        "a stranger reads in one transaction all the time",
        schedule=(
            Cycle((ForeignLock("F26", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1", 20.0),), every=-0.1),
        ),
    ),
    Scenario(
        "few-connections",
        "the database takes 15 connections",
        workload=SMALL,
        schedule=(
            Cycle((DatabaseRestart("F29", settings="-c max_connections=15"),), every=-4.0),
            Cycle((DatabaseRestart("F29"),), every=-1.0),
        ),
    ),
    Scenario(
        "read-only",
        "the database refuses to be written to",
        workload=SMALL,
        schedule=(
            Cycle(
                (
                    Sql(
                        "F30",
                        ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"),
                        (
                            "SET default_transaction_read_only = off",
                            "ALTER SYSTEM RESET default_transaction_read_only",
                            "SELECT pg_reload_conf()",
                        ),
                        1.5,
                    ),
                ),
                every=-1.5,
                times=3,
            ),
        ),
    ),
)
