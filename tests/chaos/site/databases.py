"""The database of a chaos run: a PostgreSQL of its own that can be crashed, or a file of SQLite."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.databases.postgres import OwnPostgres, configure, own_postgres

# Found before pg_catalog's own, so that everything in the database that asks for the time asks this function.
_CLOCK = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.clock_steps (shift interval NOT NULL, stands_at timestamptz);
INSERT INTO chaos.clock_steps VALUES ('0', NULL);
CREATE FUNCTION chaos.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(stands_at, pg_catalog.clock_timestamp()) + shift FROM chaos.clock_steps
$$;
"""


@dataclass(frozen=True)
class Sqlite:
    """A file; whoever writes to it is the server."""

    path: Path

    @property
    def url(self) -> str:
        """What servers are told."""
        return f"sqlite:///{self.path}"


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL that only this run knows."""

    own: OwnPostgres

    @property
    def url(self) -> str:
        """Around all proxies."""
        return self.own.url

    @property
    def socket(self) -> str:
        """Where a proxy finds it."""
        return f"{self.own.wheel.get_postmaster_info().socket_dir}/.s.PGSQL.5432"

    def through(self, port: int) -> str:
        """The URL of a server behind a proxy."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    async def stop(self, mode: str) -> None:
        """Stop it: "immediate" as a crash would, "fast" with a word to every session."""
        await asyncio.to_thread(self.own._control, "stop", "-m", mode)

    async def start(self, settings: str = "") -> None:
        """Start it again, where it was, as soon as the last process of the one before has gone."""
        for _ in range(20):
            with suppress(subprocess.CalledProcessError):
                await asyncio.to_thread(self.own.start, settings)
                return
            await asyncio.sleep(0.2)
        raise TimeoutError("PostgreSQL does not start")

    async def execute(self, *statements: str) -> None:
        """Run statements, each by itself."""
        connection = await asyncpg.connect(self.url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def rows(self, sql: str) -> list[Any]:
        """The rows of a query."""
        connection = await asyncpg.connect(self.url)
        try:
            rows: list[Any] = await connection.fetch(sql)
            return rows
        finally:
            await connection.close()

    async def value(self, sql: str) -> Any:
        """The one value of a query; None if it finds nothing."""
        return next((row[0] for row in await self.rows(sql)), None)

    async def put_clock_under_control(self) -> None:
        """Let `ClockStep` move the database's clock from now on."""
        await self.execute(_CLOCK, "ALTER DATABASE postgres SET search_path = chaos, pg_catalog, public")


@contextmanager
def start_postgres() -> Iterator[Postgres]:
    """A PostgreSQL for one run.

    A crash makes it forget what is to be vacuumed, and it looks for the first time after this pause, by default a
    minute: crashed more often, it would never vacuum at all.
    """
    with own_postgres() as own:
        configure(own.url, autovacuum_naptime="10s")
        yield Postgres(own)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A folder, on a disk of its own if it is to be small."""
    folder.mkdir()
    if not mib:
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "chaos", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
