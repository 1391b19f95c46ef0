"""Faults of a file of SQLite: disks that refuse, and strangers that hold the lock."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.run import Trouble
from tests.chaos.faults.kind import Kind, victim
from tests.chaos.site.processes import SERVER
from tests.chaos.site.site import Site


@dataclass(frozen=True, slots=True)
class BrokenDisk(Kind):
    """System calls of the server fail for a while, as strace makes them."""

    inject: str
    """As strace wants it: "fdatasync:error=EIO"."""
    leases: float = 0.5

    async def fire(self, site: Site) -> None:
        one = await victim(site, "server")
        call = self.inject.partition(":")[0]
        async with self.noted(site, f"{one.name}-{one.starts - 1} {self.inject}"):
            strace = await asyncio.create_subprocess_exec(
                *("strace", "-f", "-qq", "-p", str(one.pid), "-e", f"trace={call}", "-e", f"inject={self.inject}"),
                stderr=asyncio.subprocess.DEVNULL,
            )
            await asyncio.sleep(self.leases * site.lease)
            strace.send_signal(signal.SIGINT)
            await strace.wait()


@dataclass(frozen=True, slots=True)
class FullDisk(Kind):
    """The file system of the database has no room for a while."""

    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        folder = Path(site.database.url.removeprefix("sqlite:///")).parent
        ballast = folder / "ballast"
        async with self.noted(site, "database"):
            with ballast.open("wb") as file, suppress(OSError):
                while True:
                    os.write(file.fileno(), bytes(4096))
            await asyncio.sleep(self.leases * site.lease)
            ballast.unlink()


@dataclass(frozen=True, slots=True)
class BusyFile(Kind):
    """Another process holds the write lock of the SQLite file."""

    leases: float = 3.0

    async def fire(self, site: Site) -> None:
        path = site.database.url.removeprefix("sqlite:///")
        async with self.noted(site, "database"):
            connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
            await asyncio.sleep(self.leases * site.lease)
            connection.execute("ROLLBACK")
            connection.close()


@dataclass(frozen=True, slots=True)
class SecondServer(Kind):
    """Another server wants the same file, and must be turned away."""

    async def fire(self, site: Site) -> None:
        async with self.noted(site, "database"):
            process = await asyncio.create_subprocess_exec(
                *(*SERVER, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"),
                *("--database", site.database.url),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
            if process.returncode != 1 or b"in use by another server" not in said:
                site.recorder.record(Trouble("second server", said.decode(), now_ns()))
