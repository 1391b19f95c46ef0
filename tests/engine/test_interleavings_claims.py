"""Interleavings of claims, each forced: what was leased to a worker that nobody told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell_server.domain.errors import DatabaseUnavailable
from stepwell_server.engine.committer import Committer
from stepwell_server.engine.dispatch import Delivery
from stepwell_server.engine.tasks import Claim
from tests.support.faults import FaultyBackend, Rates
from tests.support.runs import ANNA, Engine, background, held_before_commit, replicas_on, taken


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
