"""Workers that are driven by hand, and the service that gives them work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from stepwell_server.domain.values.tuning import Tuning
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.workers import HandWorker, close_all

Hire: TypeAlias = Callable[..., Awaitable[HandWorker]]


@pytest.fixture
async def hire_at(start_server: StartServer) -> AsyncIterator[Hire]:
    """Connects workers to a server of the test's choice, and loses them before the server stops."""
    hired: list[HandWorker] = []

    async def hire(served: Served, *names: str, credit: int = 1, connect: bool = True, **options: Any) -> HandWorker:
        worker = HandWorker(served.channel, names or ("order",), **options)
        hired.append(worker)
        if connect:
            await worker.connect(credit=credit)
        return worker

    yield hire
    await close_all(hired)


@pytest.fixture
def hire(hire_at: Hire, server: Served) -> Hire:
    """Connects workers to the server."""

    async def at_the_server(*names: str, **options: Any) -> HandWorker:
        return await hire_at(server, *names, **options)

    return at_the_server


@pytest.fixture
async def external(start_server: StartServer, database_url: str) -> Served:
    """A server that moves nothing by itself."""
    return await start_server(database_url, dispatch="external")


@pytest.fixture
async def still(start_server: StartServer, database_url: str) -> Served:
    """A server whose time stands still."""
    return await start_server(database_url, virtual_clock=True)


@pytest.fixture
async def brisk(start_server: StartServer, database_url: str, tuning: Tuning) -> Served:
    """A server that sweeps all the time and gives broken streams no grace: lost workers are noticed within a moment."""
    return await start_server(database_url, tuning=replace(tuning, sweep_interval=0.05), leases={"reconnect_grace": 0})


@pytest.fixture
def flows(server: Served) -> Flows:
    """Instances of the workflow "order"."""
    return Flows(server.channel)


@pytest.fixture
def triggers(server: Served) -> Triggers:
    """Hooks of the default namespace."""
    return Triggers(server.channel)
