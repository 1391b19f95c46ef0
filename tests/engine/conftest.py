"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import make_url

from stepwell_server.databases import open_database
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database
from tests.support.databases.postgres import PostgresServer
from tests.support.replicas.runs import Engine, replicas_on
from tests.support.replicas.spine import Spine, running


@pytest.fixture
async def spine(db: Database, tuning: Tuning) -> AsyncIterator[Spine]:
    """A spine on a database of its own, on each of the two databases."""
    async with running(Spine(db, tuning=tuning)) as one:
        yield one


@pytest.fixture
async def engine(database_url: str, tuning: Tuning) -> AsyncIterator[Engine]:
    """A replica, on each of the two databases."""
    async with replicas_on(database_url, tuning=tuning) as (one,):
        yield one


@pytest.fixture
async def spines(shared_url: str) -> AsyncIterator[tuple[Spine, Spine]]:
    """Two spines on one PostgreSQL, as in two replicas."""
    databases = [open_database(make_url(shared_url)) for _ in range(2)]
    await databases[0].run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    async with running(Spine(databases[0])) as here, running(Spine(databases[1])) as there:
        yield here, there
    for database in databases:
        await database.close()


@pytest.fixture
async def replicas(shared_url: str, tuning: Tuning) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two replicas on one PostgreSQL. No hint is ever sent between them, unless a test does."""
    async with replicas_on(shared_url, 2, tuning=tuning) as (here, there):
        yield here, there


@pytest.fixture
def shared_url(postgres_url: str, postgres: PostgresServer) -> str:
    """A PostgreSQL database that finds deadlocks before a lock's time is over."""
    postgres.execute(f"ALTER DATABASE {make_url(postgres_url).database} SET deadlock_timeout = '20ms'")
    return postgres_url
