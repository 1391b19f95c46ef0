"""Virtual time and leases: two clocks that do not disturb each other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import make_url

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.tasks import Verdict
from stepwell_server.domain.values.times import DAY, HOUR
from stepwell_server.storage.database import clock, migrate
from tests.support.replicas.spine import ANNA, Spine, running


@pytest.fixture
async def virtual(database_url: str) -> AsyncIterator[Spine]:
    """A spine whose users' time stands still."""
    db = open_database(make_url(database_url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=True))
    async with running(Spine(db)) as spine:
        yield spine
    await db.close()


async def advance(spine: Spine, by: int) -> None:
    await spine.db.run_tx(lambda tx: clock.move(tx, clock.lock(tx).now + by))


async def test_a_year_passes_and_the_sleeper_is_due(virtual: Spine) -> None:
    await virtual.schedule(run_at=await virtual.now() + 365 * DAY)

    await advance(virtual, 365 * DAY - 1)
    assert await virtual.claim() == []
    await advance(virtual, 1)

    assert len(await virtual.claim()) == 1


async def test_a_lease_outlives_a_year_of_virtual_time(virtual: Spine) -> None:
    await virtual.schedule()
    task = await virtual.claim_one(ANNA)
    await virtual.renew(task)

    await advance(virtual, 365 * DAY)

    assert await virtual.sweep() == []
    assert (await virtual.advance(task)).verdict is Verdict.ACCEPTED


async def test_a_dead_workers_lease_lapses_while_virtual_time_stands(virtual: Spine) -> None:
    await virtual.schedule(run_at=await virtual.now() - HOUR)
    task = await virtual.claim_one(ANNA)
    before = await virtual.now()

    await virtual.pass_lease_time(11)

    assert [one.id for one in await virtual.sweep()] == [task.id]
    assert await virtual.now() == before
