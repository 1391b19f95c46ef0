"""Fixtures of the SDK's unit tests: no server, no network, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stepwell import Client
from stepwell.tuning import Tuning
from tests.sdk.fake_server import FakeServer, fake_server
from tests.sdk.stage import Stage


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
async def raised() -> AsyncIterator[list[BaseException]]:
    """What reaches the loop's exception handler."""
    errors: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
    yield errors
    loop.set_exception_handler(None)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as served:
        yield served


@pytest.fixture
def client_tuning(request: pytest.FixtureRequest) -> Tuning:
    """Pauses and limits of the client. `@pytest.mark.client_tuning(field=value)` changes them for a test."""
    mark = request.node.get_closest_marker("client_tuning")
    return Tuning() if mark is None else Tuning(**mark.kwargs)


@pytest.fixture
async def client(server: FakeServer, client_tuning: Tuning) -> AsyncIterator[Client]:
    async with Client(server.address, tuning=client_tuning) as opened:
        yield opened
