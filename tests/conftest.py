"""Fixtures of every tier: real databases, real servers, one event loop.

A test that takes `database_url` (or anything made of it) runs twice: on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme
from sqlalchemy import make_url
from xdist.scheduler import LoadScopeScheduling

from stepwell_server.databases import open_database
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database
from stepwell_server.storage.database.payloads import from_text
from stepwell_server.storage.workflows import instances as stored_workflows
from stepwell_server.storage.workflows import runs as stored_runs
from tests.support.databases import templates
from tests.support.databases.postgres import PostgresServer
from tests.support.flaky import Retries
from tests.support.servers.servers import Served, StartServer, start_in_process


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sqlite-only` leaves out every test that needs PostgreSQL, `--postgresql-only` every other one."""
    parser.addoption("--sqlite-only", action="store_true")
    parser.addoption("--postgresql-only", action="store_true")
    parser.addoption("--retry-failed", action="store_true", help="run what failed again, alone: what passes is flaky")


def pytest_configure(config: pytest.Config) -> None:
    """Retries belong to the process that collects the reports, not to those that run tests for it."""
    if config.getoption("--retry-failed") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Retries())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is to be left out."""
    if config.getoption("--sqlite-only"):
        items[:] = [item for item in items if not _needs_postgres(item)]
    if config.getoption("--postgresql-only"):
        items[:] = [item for item in items if _needs_postgres(item)]


class Scheduling(LoadScopeScheduling):
    """One test after the other to whoever is free, but those that share a crowd to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return file if file.endswith("plans.py") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Who runs which test, with `-n`."""
    return Scheduling(config, log)


def _needs_postgres(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "postgres" in getattr(item, "fixturenames", ()) or parameters.get("database_url") == "postgresql"


@pytest.fixture(scope="session", autouse=True)
def quiet_logs() -> None:
    """Logs of servers in this process: warnings and worse only, through structlog's own printer."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Signals reach the processes that tests start, also if this one was started in the background, deaf to them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session: the one STEPWELL_TEST_PG names, or one from the wheel."""
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def payload_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each stored payload of a workflow has that was read."""
    read: list[int] = []

    def counting(text: str | None) -> Payload | None:
        if text is not None:
            read.append(len(text))
        return from_text(text)

    for store in (stored_workflows, stored_runs):
        monkeypatch.setattr(store, "from_text", counting)
    return read


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A database that is all this test's own: migrated, with nothing in it."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The same on PostgreSQL, for what only exists there."""
    with postgres.lend(templates.migrate_now) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    return templates.sqlite_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The same on SQLite, for what does not depend on the database."""
    return templates.sqlite_copy(sqlite_template, tmp_path)


@pytest.fixture
def tuning(request: pytest.FixtureRequest) -> Tuning:
    """Pauses and bounds of servers and replicas. `@pytest.mark.tuning(field=value)` changes them for a test."""
    marks = reversed([*request.node.iter_markers("tuning")])  # the nearest one has the last word
    return Tuning(**{name: value for mark in marks for name, value in mark.kwargs.items()})


@pytest.fixture
async def db(database_url: str, tuning: Tuning) -> AsyncIterator[Database]:
    """A migrated database."""
    database = open_database(make_url(database_url), tuning)
    await database.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    yield database
    await database.close()


@pytest.fixture
async def start_server(tuning: Tuning) -> AsyncIterator[StartServer]:
    """Starts servers in this process, on free ports, and stops them after the test."""
    async with AsyncExitStack() as stack:

        async def start(database_url: str, **settings: object) -> Served:
            return await stack.enter_async_context(start_in_process(database_url, **{"tuning": tuning, **settings}))

        yield start


@pytest.fixture
async def server(start_server: StartServer, database_url: str) -> Served:
    """A server on a database of its own."""
    return await start_server(database_url)


@pytest.fixture
async def sqlite_server(start_server: StartServer, sqlite_url: str) -> Served:
    """A server on SQLite, for what does not depend on the database."""
    return await start_server(sqlite_url)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who certifies the receivers of webhooks."""
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that makes it trusted."""
    file = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return file
