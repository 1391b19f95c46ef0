"""How the processes of a run are: memory, descriptors, threads and connections, looked at while they run."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.chaos.databases import Postgres
from tests.chaos.site import Site

EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Vital:
    """One look at one process."""

    rss_kib: int
    descriptors: int
    threads: int


def look(pid: int) -> Vital | None:
    """How a process is. None: it is gone."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return Vital(int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]))
    except (OSError, KeyError):
        return None


@dataclass
class Vitals:
    """The worst of each role, and the most connections to the database."""

    site: Site
    peak_rss_kib: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak_descriptors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak_connections: int = 0

    async def watch(self) -> None:
        """Look every second, until cancelled."""
        while True:
            for name, process in self.site.processes.items():
                vital = look(process.pid) if process.alive else None
                if vital is not None:
                    role = name.partition("-")[0]
                    self.peak_rss_kib[role] = max(self.peak_rss_kib[role], vital.rss_kib)
                    self.peak_descriptors[role] = max(self.peak_descriptors[role], vital.descriptors)
            await self._count_connections()
            await asyncio.sleep(EVERY)

    async def _count_connections(self) -> None:
        database = self.site.database
        if isinstance(database, Postgres):
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                async with asyncio.timeout(1):
                    number = await database.value(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwell'"
                    )
                self.peak_connections = max(self.peak_connections, number)
