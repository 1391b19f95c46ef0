"""Interleavings of what workers are told of their runs, each forced: lost words, moved streams, full lanes."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.frames import Suspend
from stepwell_server.domain.times import HOUR, SECOND
from stepwell_server.engine import connections
from stepwell_server.engine.dispatch import Delivery
from tests.support.faults import FaultyBackend, Rates
from tests.support.runs import (
    ANNA,
    SUSPEND,
    Engine,
    background,
    done,
    expects,
    next_resolved,
    report,
    sleeps,
    streamed,
    taken,
    until,
)


async def test_a_suspend_is_told_of_what_was_lost_before_its_last_result_was_acknowledged(engine: Engine) -> None:
    """Rules 10 and 32: the acknowledgement is newer than the end of the wait, and says nothing of it."""
    mine = await engine.begin()
    opened = await engine.say(mine, expects("approval"), sleeps("nap", HOUR))
    await engine.send()
    assert [step.name for step in (await engine.say(mine)).resolved] == ["approval"]  # and this is lost
    await engine.say(mine, done("beside it"))

    suspended = await engine.say(mine, Suspend(known_revision=opened.revision))

    assert not suspended.answers[0].released
    assert "approval" in {step.name for step in suspended.resolved}


async def test_a_replica_that_a_worker_has_left_ends_none_of_its_waits(replicas: tuple[Engine, Engine]) -> None:
    """Rules 8 and 10: it would tell nobody, and the other would find nothing left to tell."""
    here, there = replicas
    connection, mine = await streamed(here)
    await report(connection, mine, expects("approval"))
    moved = await there.connect(ANNA, [mine.held])
    await there.send()

    here.dispatcher.look([mine.held.task_id])
    while mine.held.task_id in connection.place.held:
        await asyncio.sleep(0.001)
    there.dispatcher.look([mine.held.task_id])

    assert [step.name for step in await next_resolved(moved)] == ["approval"]


async def test_a_wait_that_was_open_at_a_claim_ends_in_time_though_its_holder_says_nothing(engine: Engine) -> None:
    """Rule 10: an event has woken the run, and its worker begins a long body that it need not announce."""
    connection, mine = await streamed(engine)
    suspended = await engine.say(mine, expects("approval"), sleeps("nap", SECOND), SUSPEND)
    assert suspended.answers[-1].released
    engine.dispatcher.drop(connection.place, mine.held, ended=True)
    async with background(engine.dispatcher.run()):
        await engine.send()
        connection.grant(1)
        (delivery,) = await taken(connection)
        assert isinstance(delivery, Delivery)

        await engine.advance(SECOND)
        resolved = await next_resolved(connection)

    assert [step.name for step in resolved] == ["nap"]


async def test_a_worker_that_goes_on_reporting_while_the_database_is_away_is_not_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LANES_BYTES", 1100)
    connection, mine = await streamed(engine)
    backend = engine.db._backend
    engine.db._backend = FaultyBackend(backend, {"group": Rates(error=1.0)})
    for number in range(6):
        await connection.report(mine.held, mine.frames(done(f"s{number}")))
        await until(lambda: connection._lanes)
    stuck = asyncio.create_task(connection.report(mine.held, mine.frames(done("one more"))))
    await asyncio.sleep(0)
    assert not stuck.done()

    engine.db._backend = backend
    await stuck
    await until(lambda: not connection._lanes)
    assert len(await engine.steps()) == 7
