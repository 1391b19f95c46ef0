"""How a run's processes and tables are, looked at while it runs: what grows with time, and should not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.chaos.site.databases import Postgres
from tests.chaos.site.processes import Running, tasks_file
from tests.chaos.site.site import Site

EVERY = 1.0
TABLES_EVERY = 20.0
SETTLED = 0.5
"""Part of a run after which caches are warm: what is higher at the end than ever before that has grown."""
SLACK = 1.05
"""Growth of memory and tables that is called none: allocators and pages are coarse."""
COARSE_BYTES = 1024 * 1024
"""What a table takes between two vacuums, which do not make its indexes smaller. Tens of times as much passes through
in a soak: one row in ten that cannot be cleared away would be seen."""
A_FEW = 4
"""Descriptors, threads or tasks that are there or not by chance: who is connected to whom, how busy it ever was."""
AWAY = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError)
AWAY += (asyncpg.OperatorInterventionError, asyncpg.InsufficientResourcesError)
"""What looking at a database raises that is away, or full."""
LAB = ("driver", "proxy")
"""Processes that are tools of the run: the driver remembers everything that it did."""

_SIZES = """
SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables
WHERE schemaname = 'public' AND relname <> 'chaos_trail' ORDER BY relname
"""
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwell'"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a process or a table."""

    at: float
    about: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Level:
    """A figure that should stay where it was when the run had settled."""

    about: str
    figure: str
    half: float
    last: float
    most: float
    """Its highest before the run had settled; of a table, what as many rows took then."""

    @property
    def has_grown(self) -> bool:
        """Whether there is more of it at the end, when nothing is left to do, than there was ever before."""
        return self.last > self.most

    def __str__(self) -> str:
        return f"{self.about}: {self.figure} {self.half:.0f} -> {self.last:.0f} (at most {self.most:.0f})"


@dataclass
class Vitals:
    """All looks at everything, and the most connections to the database."""

    site: Site
    looks: list[Look] = field(default_factory=list)
    peak_connections: int = 0
    _is_over: bool = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._is_over = True  # a database that is away may swallow that it is cancelled
            watching.cancel()

    async def _watch(self) -> None:
        tables_at = 0.0
        while not self._is_over:
            self._look_at_processes()
            await self._count_connections()
            if time.monotonic() >= tables_at:
                tables_at = time.monotonic() + TABLES_EVERY
                await self._look_at_tables()
            await asyncio.sleep(EVERY)

    async def look_at_rest(self) -> None:
        """The last look, when there is nothing left to do. Who is asked for its tasks answers a moment later."""
        if isinstance(self.site.database, Postgres):
            await self.site.database.execute("VACUUM")  # which PostgreSQL would do by itself in a while
        self._look_at_processes()
        await asyncio.sleep(EVERY)
        await self._look_at_tables()
        self._look_at_processes()

    def peaks(self) -> dict[str, int]:
        """The most memory of each role, in MiB."""
        peaks: dict[str, float] = defaultdict(float)
        for look in self.looks:
            if "rss_kib" in look.figures:
                role = look.about.partition("-")[0]
                peaks[role] = max(peaks[role], look.figures["rss_kib"])
        return {role: int(peak) // 1024 for role, peak in sorted(peaks.items())}

    def levels(self) -> list[Level]:
        """The figures of all that was there from the beginning to the end."""
        began, ended = self.looks[0].at, self.looks[-1].at
        series: dict[str, list[Look]] = defaultdict(list)
        for look in self.looks:
            series[look.about].append(look)
        levels: list[Level] = []
        for about, looks in sorted(series.items()):
            was_there = looks[0].at < began + 0.2 * (ended - began) and looks[-1].at > ended - TABLES_EVERY
            if was_there and not about.startswith(LAB):
                settled = [look for look in looks if look.at <= began + SETTLED * (ended - began)]
                levels += _levels(about, [look.figures for look in settled], looks[-1].figures)
        return levels

    def _look_at_processes(self) -> None:
        for process in self.site.processes.values():
            if process.alive and process.serves:
                with suppress(OSError, KeyError, ValueError):  # it has just ended, or has not answered yet
                    figures = _figures(process, self.site.folder)
                    self.looks.append(Look(time.monotonic(), f"{process.name}-{process.starts - 1}", figures))

    async def _look_at_tables(self) -> None:
        database = self.site.database
        if isinstance(database, Postgres):
            with suppress(*AWAY):
                async with asyncio.timeout(5):
                    for table, size in await database.rows(_SIZES):
                        rows = await database.value(f"SELECT count(*) FROM {table}")
                        self.looks.append(Look(time.monotonic(), table, {"bytes": size, "rows": rows}))

    async def _count_connections(self) -> None:
        database = self.site.database
        if isinstance(database, Postgres):
            with suppress(*AWAY):
                async with asyncio.timeout(1):
                    self.peak_connections = max(self.peak_connections, await database.value(_CONNECTIONS))


def _figures(process: Running, folder: Path) -> dict[str, float]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    figures: dict[str, float] = {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{process.pid}/fd")),
    }
    if int(status["SigCgt"], 16) >> (signal.SIGUSR2 - 1) & 1 and not process.frozen:  # it can be asked
        process.signal(signal.SIGUSR2)
        figures["tasks"] = int(tasks_file(folder, process.name).read_text())
    return figures


def _levels(about: str, settled: list[dict[str, float]], last: dict[str, float]) -> list[Level]:
    half = settled[-1]
    most = {name: max(figures.get(name, 0.0) for figures in settled) for name in half}
    if "bytes" in most:
        fuller = last["rows"] / max(half["rows"], 1)
        larger = max(most["bytes"], half["bytes"] * fuller) * SLACK + COARSE_BYTES
        return [Level(f"{about} ({last['rows']:.0f} rows)", "bytes", half["bytes"], last["bytes"], larger)]
    most = {name: most[name] * SLACK if name == "rss_kib" else most[name] + A_FEW for name in most}
    return [Level(about, name, half[name], last.get(name, 0.0), most[name]) for name in half]
