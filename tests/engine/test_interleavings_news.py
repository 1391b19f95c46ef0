"""Interleavings of what workers are told of their runs, each forced: lost words, moved streams, full lanes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell_server.domain.spine.leases import Held, LeaseTimes
from stepwell_server.domain.values.errors import DatabaseUnavailable, Internal, StepwellError
from stepwell_server.domain.values.times import HOUR, SECOND
from stepwell_server.domain.workflows.frames import Suspend
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.calls import Renew
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.outbox import Beat, Told
from tests.support.faults.faults import FaultyBackend, Rates
from tests.support.faults.forcing import held_before_commit
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import (
    ANNA,
    SUSPEND,
    Engine,
    background,
    done,
    expects,
    next_resolved,
    replicas_on,
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

    here.handout.holders.look([mine.held.task_id])
    while mine.held.task_id in connection.worker.held:
        await asyncio.sleep(0.001)
    there.handout.holders.look([mine.held.task_id])

    assert [step.name for step in await next_resolved(moved)] == ["approval"]


async def test_a_wait_that_was_open_at_a_claim_ends_in_time_though_its_holder_says_nothing(engine: Engine) -> None:
    """Rule 10: an event has woken the run, and its worker begins a long body that it need not announce."""
    connection, mine = await streamed(engine)
    suspended = await engine.say(mine, expects("approval"), sleeps("nap", SECOND), SUSPEND)
    assert suspended.answers[-1].released
    engine.handout.holders.drop(connection.worker, mine.held, ended=True)
    async with background(engine.handout.run()):
        await engine.send()
        connection.grant(1)
        (delivery,) = await taken(connection)
        assert isinstance(delivery, Assignment)

        await engine.advance(SECOND)
        resolved = await next_resolved(connection)

    assert [step.name for step in resolved] == ["nap"]


@pytest.mark.tuning(waiting_bytes=1100)
async def test_a_worker_that_goes_on_reporting_while_the_database_is_away_is_not_read(engine: Engine) -> None:
    connection, mine = await streamed(engine)
    backend = engine.db.backend
    engine.db.backend = FaultyBackend(backend, {"group": Rates(error=1.0)})
    for number in range(6):
        await connection.report(mine.held, mine.frames(done(f"s{number}")))
        await until(lambda: connection._reports._lanes)
    stuck = asyncio.create_task(connection.report(mine.held, mine.frames(done("one more"))))
    await asyncio.sleep(0)
    assert not stuck.done()

    engine.db.backend = backend
    await stuck
    async with asyncio.timeout(PATIENCE):
        while len(await engine.steps()) < 7:
            await asyncio.sleep(0)


# ---- 7: a lease that cannot be renewed


async def two_held(engine: Engine) -> tuple[Connection, Held, Held]:
    """Two tasks that a worker holds through a stream."""
    connection = await engine.connect(ANNA)
    held = []
    for instance_id in ("x", "y"):
        await engine.create(instance_id)
        held.append((await engine.claim_one(connection.owner)).held)
        engine.handout.holders.hold(connection.worker, held[-1])
    return connection, held[0], held[1]


def refuse_renewals(monkeypatch: pytest.MonkeyPatch, of: Held, error: StepwellError, times: int = 1000) -> None:
    """Renewals of this lease fail so many times."""
    enqueue, failed = Committer.enqueue, list[Renew]()

    def refusing(self: Committer, call: Any, *sender: Sender) -> Any:
        if not isinstance(call, Renew) or call.held != of or len(failed) >= times:
            return enqueue(self, call, *sender)
        failed.append(call)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(error)
        return answer

    monkeypatch.setattr(Committer, "enqueue", refusing)


async def told(connection: Connection) -> list[Held]:
    """The leases that the worker is told to have lost, until its heartbeat is confirmed."""
    lost: list[Held] = []
    while True:
        for message in await taken(connection):
            if isinstance(message, Beat):
                return lost
            if isinstance(message, Told) and message.news.stale is not None:
                lost.append(message.held)


async def test_a_lease_whose_row_somebody_has_locked_is_lost_alone(postgres_url: str) -> None:
    """Rule 7: no heartbeat would be confirmed that names it, and the worker would give up all the others, too."""
    async with replicas_on(postgres_url, 2, LeaseTimes(lease=3 * SECOND)) as (here, there):
        connection, locked, other = await two_held(here)
        async with held_before_commit(there, there.pause("x"), label="call"):
            await connection.heartbeat(1, [locked, other])

            assert await told(connection) == [locked]

        assert (connection.last_beat, list(connection.worker.held.values())) == (1, [other])


async def test_a_lease_that_is_said_to_be_lost_is_not_kept_by_what_was_reported_before(postgres_url: str) -> None:
    """Rule 7: nobody would have the task until it is over."""
    async with replicas_on(postgres_url, 2, LeaseTimes(lease=3 * SECOND, reconnect_grace=0)) as (here, there):
        connection, mine = await streamed(here)
        await here.create("y")
        other = (await here.claim_one(connection.owner)).held
        here.handout.holders.hold(connection.worker, other)
        async with held_before_commit(there, there.send()):
            await connection.report(mine.held, mine.frames(done("charge")))
            await connection.heartbeat(1, [mine.held, other])
            assert await told(connection) == [mine.held]

        await until(lambda: not connection._reports._lanes)
        assert list(await here.steps()) == ["charge"]
        assert await here.sweep() == [mine.held.task_id]


async def test_a_renewal_that_met_a_fault_is_tried_again_before_its_heartbeat_is_confirmed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: the worker would count on a lease that is not renewed."""
    connection, unlucky, other = await two_held(engine)
    refuse_renewals(monkeypatch, unlucky, DatabaseUnavailable("it is away"), times=2)

    await connection.heartbeat(1, [unlucky, other])

    assert await told(connection) == []
    assert connection.last_beat == 1
    assert (await engine.live("x")).acked and (await engine.live("y")).acked


async def test_a_renewal_that_can_never_succeed_is_not_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, broken, other = await two_held(engine)
    refuse_renewals(monkeypatch, broken, Internal("a bug"), times=1)

    await connection.heartbeat(1, [broken, other])

    assert await told(connection) == [broken]
    assert list(connection.worker.held.values()) == [other]


@pytest.mark.parametrize("before", [True, False], ids=["before the heartbeat", "during the heartbeat"])
async def test_nothing_is_given_up_while_the_database_is_away(
    database_url: str, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Rule 17: no lease is worse off than the others, and all may be renewed when it is back."""
    times = LeaseTimes(lease=3 * SECOND // 2)
    async with replicas_on(database_url, times=times) as (engine,):
        connection, one, other = await two_held(engine)
        over = asyncio.get_running_loop().time() + times.lease / 3 / SECOND + 0.1
        with monkeypatch.context() as outage:
            for lease in (one, other) if before else (one,):
                refuse_renewals(outage, lease, DatabaseUnavailable("it is away"))
            await connection.heartbeat(1, [one, other])
            while not before and not (await engine.live("y")).acked:
                await asyncio.sleep(0)
            engine.db.reachable = before  # nobody has tried anything else then
            await until(lambda: asyncio.get_running_loop().time() > over)
            assert ([*connection.outbox], connection.last_beat) == ([], 0)

        await connection.heartbeat(2, [one, other])

        assert await told(connection) == []
        assert connection.last_beat == 2
