"""The rest of the fault matrix, on smaller workloads."""

from __future__ import annotations

from tests.chaos.faults.database import ClockStep, DatabaseRestart, ForeignLock, FrozenBackend, LostListener, Sql
from tests.chaos.faults.file import BrokenDisk, BusyFile, FullDisk, SecondServer
from tests.chaos.faults.processes import (
    Block,
    CrashPoint,
    Freeze,
    Herd,
    Kill,
    Nothing,
    Partition,
    Respawn,
    Starve,
    Storm,
)
from tests.chaos.scenarios.promises import KILLS, LONG_BODIES, SQLITE
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

SMALL = (Orders(instances=200, seconds=30.0),)
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
"""Where Debian's package puts it."""
TEN_MINUTES_AHEAD = {"LD_PRELOAD": FAKETIME, "FAKETIME": "+10m", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
TEN_MINUTES_BEHIND = TEN_MINUTES_AHEAD | {"FAKETIME": "-10m"}

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

FILE = (
    Scenario(
        "file-kills",
        "kill -9 of the server on SQLite, 200 times",
        SQLITE,
        (Orders(instances=500, seconds=200.0),),
        schedule=(Cycle((Kill("F40", "server", 0.0),), every=-0.12, times=200),),
    ),
    Scenario(
        "file-errors",
        "the disk refuses to sync, and to write",
        SQLITE,
        SMALL,
        schedule=(
            Cycle(
                (BrokenDisk("F42", "fdatasync,fsync:error=EIO"), BrokenDisk("F42", "pwrite64:error=ENOSPC")), -1.0, 8
            ),
        ),
        needs=("strace",),
    ),
    Scenario(
        "file-full",
        "the disk of the file is full",
        Topology("sqlite", servers=1, disk_mib=24),
        SMALL,
        schedule=(Cycle((FullDisk("F42"),), every=-1.0, times=4),),
        needs=("mount",),
    ),
    Scenario(
        "file-busy",
        "a stranger holds the lock of the file for three leases",
        SQLITE,
        SMALL,
        schedule=(Cycle((BusyFile("F43"), SecondServer("F44")), every=-1.0, times=6),),
    ),
)

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

MATRIX = (*PROCESSES, *DATABASE, *FILE, *NETWORK, *TIME, *RACES)
