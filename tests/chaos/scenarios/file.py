"""A file of SQLite on a disk that fails."""

from __future__ import annotations

from tests.chaos.faults.file import BrokenDisk, BusyFile, FullDisk, SecondServer
from tests.chaos.faults.processes import Kill
from tests.chaos.scenarios.parts import SMALL, SQLITE
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

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
