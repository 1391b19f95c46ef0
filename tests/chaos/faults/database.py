"""Faults of PostgreSQL: it goes away, loses sessions, is locked by strangers, or does not know what time it is."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.chaos.faults.kind import Kind
from tests.chaos.site.databases import Postgres
from tests.chaos.site.site import Site


@dataclass(frozen=True, slots=True)
class DatabaseRestart(Kind):
    """PostgreSQL stops, stays away for some leases, and comes back."""

    mode: str = "immediate"
    away: float = 0.0
    settings: str = ""
    """Of the one that comes back, up to the next restart."""

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "database", mode=self.mode):
            await site.database.stop(self.mode)
            await asyncio.sleep(self.away * site.lease)
            await site.database.start(self.settings)


@dataclass(frozen=True, slots=True)
class Sql(Kind):
    """Statements of a stranger's, and those that undo them after some leases."""

    statements: tuple[str, ...]
    undo: tuple[str, ...] = ()
    leases: float = 1.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, f"database {self.statements[0]}"):
            await site.database.execute(*self.statements)
            await asyncio.sleep(self.leases * site.lease)
            if self.undo:
                await site.database.execute(*self.undo)


@dataclass(frozen=True, slots=True)
class LostListener(Kind):
    """The sessions over which servers hear and send hints are ended, and nothing else is."""

    leases: float = 0.3

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "listeners"):
            ended = await site.database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stepwell hints'"
            )
            site.count("listeners_dropped", len(ended))
            await asyncio.sleep(self.leases * site.lease)


@dataclass(frozen=True, slots=True)
class ForeignLock(Kind):
    """A stranger's transaction holds locks and does nothing. If it does not get them, the run fails."""

    statement: str
    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        connection = await asyncpg.connect(site.database.url)
        try:
            async with self.noted(site, f"database {self.statement}"):
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute(self.statement)
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):  # somebody may have ended the stranger
                    await asyncio.sleep(self.leases * site.lease)
                    await transaction.commit()
        finally:
            await connection.close()


@dataclass(frozen=True, slots=True)
class FrozenBackend(Kind):
    """SIGSTOP of a PostgreSQL process in the middle of a transaction of ours that has written, and so holds locks."""

    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        connection = await asyncpg.connect(site.database.url)
        try:
            pid = await _frozen_writer(connection)
        finally:
            await connection.close()
        if pid is None:
            return  # the checker misses the fault
        async with self.noted(site, f"backend {pid}"):
            await asyncio.sleep(self.leases * site.lease)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def _frozen_writer(connection: Any) -> int | None:
    """A process that is stopped, and was found to be still writing when it was. None if a second brought none.

    It waits for the next statement, so that all it holds are locks of rows, and none that everybody needs.
    """
    writing = "application_name = 'stepwell' AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
    loop = asyncio.get_running_loop()
    until = loop.time() + 1
    while loop.time() < until:
        pid: int | None = await connection.fetchval(f"SELECT pid FROM pg_stat_activity WHERE {writing} LIMIT 1")
        if pid is None:
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            if await connection.fetchval(f"SELECT pid FROM pg_stat_activity WHERE {writing} AND pid = $1", pid):
                return pid
            os.kill(pid, signal.SIGCONT)
    return None


@dataclass(frozen=True, slots=True)
class ClockStep(Kind):
    """The database's clock is moved, or stands still for some leases and then is right again."""

    seconds: float = 0.0
    stands: float = 0.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "database", seconds=self.seconds, stands=self.stands):
            await site.database.execute(
                f"UPDATE chaos.clock_steps SET shift = shift + interval '{self.seconds} seconds'"
            )
            if self.stands:
                await site.database.execute("UPDATE chaos.clock_steps SET stands_at = pg_catalog.clock_timestamp()")
                await asyncio.sleep(self.stands * site.lease)
                await site.database.execute("UPDATE chaos.clock_steps SET stands_at = NULL")
