"""How the processes of a run are: memory, descriptors, threads, tasks and connections, looked at while they run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.chaos.databases import Postgres
from tests.chaos.processes import Running
from tests.chaos.site import Site

EVERY = 1.0
SETTLED = 0.5
"""Part of a run after which caches are warm and growth counts."""


@dataclass(frozen=True, slots=True)
class Vital:
    """One look at one process."""

    at: float
    process: str
    rss_kib: int
    descriptors: int
    threads: int
    tasks: int | None = None


@dataclass
class Vitals:
    """All looks at all processes, and the most connections to the database."""

    site: Site
    looks: list[Vital] = field(default_factory=list)
    peak_connections: int = 0

    async def watch(self) -> None:
        """Look every second, until cancelled."""
        while True:
            for process in self.site.processes.values():
                if process.alive and process.serves:
                    self._look(process)
            await self._count_connections()
            await asyncio.sleep(EVERY)

    def peaks(self) -> dict[str, int]:
        """The most memory of each role, in MiB."""
        roles = {look.process.partition("-")[0] for look in self.looks}
        return {
            role: max(look.rss_kib for look in self.looks if look.process.startswith(role)) // 1024
            for role in sorted(roles)
        }

    def growth(self) -> dict[str, str]:
        """Of processes that were there all the time: how each figure grew since it had settled."""
        began, ended = self.looks[0].at, self.looks[-1].at
        grown: dict[str, str] = {}
        for process in sorted({look.process for look in self.looks}):
            looks = [look for look in self.looks if look.process == process]
            if looks[0].at - began > 0.2 * (ended - began) or ended - looks[-1].at > 0.1 * (ended - began):
                continue
            settled = next(look for look in looks if look.at >= began + SETTLED * (ended - began))
            grown[process] = " ".join(_grown(settled, looks[-1], name) for name in _FIGURES)
        return grown

    def _look(self, process: Running) -> None:
        name = f"{process.name}-{process.starts - 1}"
        with suppress(OSError, KeyError):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines if ":" in line)
            rss, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
            self.looks.append(Vital(time.monotonic(), name, rss, descriptors, threads, self._tasks(process)))

    def _tasks(self, process: Running) -> int | None:
        """How many tasks a server's loop had when it was last asked, if it can be asked (`server.py`)."""
        if not self.site.topology.store or not process.name.startswith("server") or process.frozen:
            return None
        process.signal(signal.SIGUSR2)
        with suppress(OSError, ValueError):
            return int((self.site.folder / f"tasks-{process.name}").read_text())
        return None

    async def _count_connections(self) -> None:
        database = self.site.database
        if isinstance(database, Postgres):
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                async with asyncio.timeout(1):
                    number = await database.value(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwell'"
                    )
                self.peak_connections = max(self.peak_connections, number)


_FIGURES = ("rss_kib", "descriptors", "threads", "tasks")


def _grown(settled: Vital, last: Vital, name: str) -> str:
    return f"{name} {getattr(settled, name)} -> {getattr(last, name)},"
