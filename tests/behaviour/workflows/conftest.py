"""Fixtures of the behaviour checklist: one virtual-clock server per database, and a harness with a namespace per test.

Tests share the clock, which is why each of them looks at differences of time only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeAlias

import pytest

from stepwell import App, HookDefinition
from stepwell.testing import Harness
from stepwell.workflows.definition import AnyWorkflow
from stepwell_server.storage.database.database import READ
from stepwell_server.storage.spine import tasks
from tests.support.databases.postgres import PostgresServer
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, start_in_process

NAMESPACES = (f"test-{number}" for number in itertools.count())


class StartHarness(Protocol):
    """Starts a harness that hosts these workflows and hooks, in a namespace of its own."""

    def __call__(
        self, *workflows: AnyWorkflow, hooks: Sequence[HookDefinition[Any]] = (), **options: Any
    ) -> Awaitable[Harness]: ...


LeasesLapse: TypeAlias = Callable[[], Awaitable[None]]


class VirtualServers:
    """The servers of this session, each started when it is first asked for. Crashed workers are noticed at once."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._served: dict[str, Served] = {}

    async def on(self, database_url: str) -> Served:
        """The server on this database."""
        if database_url not in self._served:
            starting = start_in_process(database_url, virtual_clock=True, leases={"reconnect_grace": "0"})
            self._served[database_url] = await self._stack.enter_async_context(starting)
        return self._served[database_url]


@pytest.fixture(scope="session")
async def virtual_servers() -> AsyncIterator[VirtualServers]:
    """Both servers. Tests come in random order, so neither may end when the other is asked for."""
    async with AsyncExitStack() as stack:
        yield VirtualServers(stack)


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('workflows')}/stepwell.db"


@pytest.fixture(scope="session")
def postgres_database(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The database of each kind that the tests of this folder share."""
    url: str = request.getfixturevalue("sqlite_file" if request.param == "sqlite" else "postgres_database")
    return url


@pytest.fixture
async def served(virtual_servers: VirtualServers, database_url: str) -> Served:
    """The virtual-clock server, on each of the two databases."""
    return await virtual_servers.on(database_url)


@pytest.fixture
async def harness(served: Served) -> AsyncIterator[StartHarness]:
    """Starts harnesses, and ends them after the test."""
    async with AsyncExitStack() as stack:

        async def start(*workflows: AnyWorkflow, hooks: Sequence[HookDefinition[Any]] = (), **options: Any) -> Harness:
            app = App(workflows=workflows, hooks=hooks)
            options = {"hangs_after": "500 milliseconds"} | options
            joining = Harness(app, address=served.addresses.listen, namespace=next(NAMESPACES), **options)
            return await stack.enter_async_context(joining)

        yield start


@pytest.fixture
def leases_lapse(served: Served) -> LeasesLapse:
    """Returns once nothing is held any more: crashed workers have been noticed, without waiting for the next sweep."""

    async def sweep_all() -> None:
        sweep = served.app.sweep  # the server's own: it remembers when nothing was held
        async with asyncio.timeout(PATIENCE):
            while await served.app.db.run_tx(tasks.held, READ):
                await sweep.once()

    return sweep_all
