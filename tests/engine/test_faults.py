"""The spine when the database errs: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.spine.tasks import NewTask, Verdict
from stepwell_server.domain.values.errors import DatabaseUnavailable
from stepwell_server.storage.database.database import Database
from stepwell_server.storage.database.failpoints import AFTER_COMMIT, BEFORE_COMMIT
from tests.support.faults.faults import Rates, faulty
from tests.support.replicas import tickets
from tests.support.replicas.spine import ORDER, Spine, running


@pytest.mark.parametrize("seed", range(5))
async def test_frames_that_are_sent_until_acknowledged_count_once(db: Database, seed: int) -> None:
    """Rule 15: half the commits seem to fail, of which half were done."""
    broken, backend = faulty(db, seed, group=Rates(error=0.2, execute_then_fail=0.3, delay=0.2))
    async with running(Spine(db)) as healthy, running(Spine(broken)) as spine:
        await healthy.schedule()
        task = await healthy.claim_one()

        for number in range(1, 21):
            while True:
                try:
                    answer = await spine.advance(task, number)
                except DatabaseUnavailable:
                    continue
                assert answer.verdict in (Verdict.ACCEPTED, Verdict.REPEATED)
                break

        stored = await healthy.read(task.id)
    assert stored is not None
    assert (stored.frame_number, stored.revision) == (20, task.revision + 20)
    assert backend.fired["execute_then_fail"] > 0


@pytest.mark.parametrize("seed", range(3))
async def test_schedules_that_are_repeated_until_acknowledged_are_stored_once(db: Database, seed: int) -> None:
    broken, _ = faulty(db, seed, group=Rates(error=0.1, execute_then_fail=0.3))

    async def surely(spine: Spine, key: str) -> None:
        while True:
            try:
                await spine.submit(tickets.Schedule(NewTask(ORDER, key)))
            except DatabaseUnavailable:
                continue
            return

    async with running(Spine(broken)) as spine:
        await asyncio.gather(*(surely(spine, str(number)) for number in range(40)))

    async with running(Spine(db)) as healthy:
        assert len(await healthy.rows()) == 40


@pytest.mark.parametrize("point", [BEFORE_COMMIT, AFTER_COMMIT])
async def test_failpoints_are_reached_around_every_commit(spine: Spine, point: str) -> None:
    reached: list[str] = []

    with spine.db.failpoints.install(reached.append):
        await spine.schedule()
        await spine.tick()

    assert reached.count(f"{point}/group") == 1
    assert reached.count(point) == 2


async def test_an_error_before_the_commit_takes_everything_back(spine: Spine) -> None:
    def stumble(point: str) -> None:
        if point == f"{BEFORE_COMMIT}/call":
            raise ZeroDivisionError

    await spine.schedule("kept")
    with spine.db.failpoints.install(stumble), pytest.raises(ZeroDivisionError):
        await spine.pass_lease_time(5)

    await spine.schedule("other")
    assert len(await spine.rows()) == 2
