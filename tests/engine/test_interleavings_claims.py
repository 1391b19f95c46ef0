"""Interleavings of claims, each forced: what was leased to a worker that nobody told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell_server.domain.dispatchers import ProcessOrder, WakeFilter
from stepwell_server.domain.errors import DatabaseSlow, DatabaseUnavailable
from stepwell_server.domain.frames import Suspend
from stepwell_server.domain.tasks import TaskStatus
from stepwell_server.engine.committer import Committer
from stepwell_server.engine.dispatch import Delivery
from stepwell_server.engine.tasks import Claim
from stepwell_server.storage import runs as run_store
from stepwell_server.storage.database import Fault
from stepwell_server.storage.runs import RunRef
from tests.support.faults import FaultyBackend, Rates
from tests.support.runs import ANNA, Engine, background, done, held_before_commit, replicas_on, taken

ANY = ProcessOrder(WakeFilter("default", frozenset(), frozenset()), max_tasks=10, max_steps=0)


async def test_a_claim_whose_answer_was_lost_is_returned_and_made_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: else it stays with a worker that never heard of it until its lease is over."""
    connection = await engine.connect(ANNA)
    await engine.create()
    submit, fences = Committer.submit, []

    async def lose_the_first(committer: Committer, call: Any) -> Any:
        answer = await submit(committer, call)
        if isinstance(call, Claim) and not fences:
            fences.append(answer.handed[0].task.fence)
            raise DatabaseUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(Committer, "submit", lose_the_first)
    async with background(engine.dispatcher.run()):
        connection.grant(1)
        (delivery,) = await taken(connection)

    assert isinstance(delivery, Delivery)
    assert delivery.held.fence > fences[0]
    assert (delivery.handed.task.interruptions, connection.place.credits) == (0, 0)


async def test_an_order_whose_claim_was_lost_leaves_its_worker_able_to_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: nothing else may ever happen on a server that moves work on request only."""
    engine.dispatcher.close()  # it hands out nothing by itself
    connection = await engine.connect(ANNA)
    connection.grant(1)
    await engine.create()
    submit, lost = Committer.submit, []

    async def lose_the_first(committer: Committer, call: Any) -> Any:
        if isinstance(call, Claim) and not lost:
            lost.append(call)
            raise DatabaseUnavailable("it did not answer")
        return await submit(committer, call)

    monkeypatch.setattr(Committer, "submit", lose_the_first)
    async with background(engine.dispatcher.run()):
        await asyncio.sleep(0)  # it waits for something to happen
        assert await engine.dispatcher.process(ANY) == []
        async with asyncio.timeout(5):
            while not connection.place.takes_more:
                await asyncio.sleep(0.001)
        assert len(await engine.dispatcher.process(ANY)) == 1


async def test_what_is_on_its_way_to_a_worker_is_not_taken_for_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: of two orders one is lost, while the other has claimed and not yet delivered."""
    engine.dispatcher.close()
    connection = await engine.connect(ANNA)
    await engine.create()
    submit, claims, deliver = Committer.submit, [], asyncio.Event()

    async def lose_the_second(committer: Committer, call: Any) -> Any:
        if isinstance(call, Claim):
            claims.append(call)
            if len(claims) == 2:
                raise DatabaseUnavailable("it did not answer")
            answer = await submit(committer, call)
            await deliver.wait()
            return answer
        return await submit(committer, call)

    monkeypatch.setattr(Committer, "submit", lose_the_second)
    async with background(engine.dispatcher.run()):
        connection.grant(1)
        first = engine.dispatcher.take_order(ANY)
        while (await engine.live()).status is not TaskStatus.PROCESSING:
            await asyncio.sleep(0)
        connection.grant(1)
        assert await engine.dispatcher.process(ANY) == []
        await engine.get()  # time for somebody to return what seems to be lost
        deliver.set()
        (held,) = await first
        async with asyncio.timeout(5):
            while connection.place.has_lost_claim:
                await asyncio.sleep(0.001)

    task = await engine.live()
    assert (task.status, task.fence) == (TaskStatus.PROCESSING, held.fence)


async def test_runs_whose_steps_take_too_long_to_read_hold_up_no_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were all given back, and claimed again, for ever."""
    for mine in [await engine.begin(instance_id=f"i{number}") for number in range(5)]:
        await engine.say(mine, done("a"), Suspend(yields=True))
    huge = (await engine.live("i2")).id
    all_steps = run_store.all_steps

    def slow(tx: Any, runs: Sequence[RunRef]) -> Any:
        if huge in {run.task_id for run in runs}:
            raise DatabaseSlow("it took too long")
        return all_steps(tx, runs)

    monkeypatch.setattr(run_store, "all_steps", slow)
    monkeypatch.setattr(engine.db._backend, "classify", lambda error: Fault.TIMEOUT)
    connection = await engine.connect(ANNA)
    connection.grant(5)
    given: list[str] = []
    async with background(engine.dispatcher.run()):
        while len(given) < 4:
            given += [one.handed.task.key for one in await taken(connection) if isinstance(one, Delivery)]

    assert sorted(given) == ["i0", "i1", "i3", "i4"]


async def test_a_newborn_whose_commit_seemed_to_fail_is_returned_and_claimed_again(engine: Engine) -> None:
    """Rule 7: it was born into the hands of a worker, and whoever stored it does not know that it did."""
    connection = await engine.connect(ANNA)
    connection.grant(1)
    backend = engine.db._backend
    engine.db._backend = FaultyBackend(backend, {"group": Rates(execute_then_fail=1.0)})
    with pytest.raises(DatabaseUnavailable):
        await engine.create()
    engine.db._backend = backend
    born = await engine.live()

    async with background(engine.dispatcher.run()):
        (delivery,) = await taken(connection)

    assert isinstance(delivery, Delivery)
    assert (delivery.held.task_id, delivery.handed.task.interruptions) == (born.id, 0)
    assert delivery.held.fence > born.fence


async def test_a_newborn_whose_creator_went_away_is_delivered_all_the_same(postgres_url: str) -> None:
    """Rule 7: a cancelled call stops waiting; what it began ends whole."""
    async with replicas_on(postgres_url) as (engine,):
        connection = await engine.connect(ANNA)
        connection.grant(1)
        async with held_before_commit(engine, engine.create()) as creating:
            creating.cancel()
            await asyncio.wait([creating])

        (delivery,) = await taken(connection)

    assert isinstance(delivery, Delivery)
    assert connection.place.credits == 0
