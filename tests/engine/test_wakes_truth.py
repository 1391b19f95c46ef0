"""What followers of wakes know is never later than the truth, whatever happens and in whatever order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable

import pytest

from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.storage.database.hints import PostgresqlHints
from tests.support.models.wakes_truth import FILTERS, Operations, followed
from tests.support.replicas.runs import Engine, replicas_on, until

STEPS = 120
PROMPT = Tuning(wake_conflation=0.0, wake_spacing=0.0)
"""Followers hear at once, and the database is asked at once."""


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_acknowledged_is_known_with_its_number(database_url: str, seed: int) -> None:
    async with replicas_on(database_url, tuning=PROMPT) as (engine,), followed(engine) as one:
        operations = Operations(engine, random.Random(seed))
        for step in range(STEPS):
            await operations.draw()()
            await one.check_not_late()
            if step % 10 == 9:
                await one.check_exact()

    _expect_every_kind(operations.done)
    for wanted in FILTERS:
        numbers = [wake.number for wake in one.heard[wanted]]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_missed_among_many_at_once(database_url: str, seed: int) -> None:
    """Commits, sweeps and questions overlap: an answer may be older than what is known."""
    async with replicas_on(database_url, tuning=PROMPT) as (engine,), followed(engine) as one:
        operations = Operations(engine, random.Random(100 + seed))
        for _ in range(STEPS // 6):
            asked = [one.dispatchers.next_wake(wanted) for wanted in FILTERS]
            await asyncio.gather(*(operations.draw()() for _ in range(6)), *asked)
            await one.check_not_late()
            await one.check_exact()


@pytest.mark.parametrize("seed", range(2))
async def test_two_replicas_know_the_truth_after_a_sweep_though_every_hint_is_lost(
    postgres_url: str, seed: int
) -> None:
    async with (
        replicas_on(postgres_url, 2, tuning=PROMPT) as engines,
        followed(engines[0]) as here,
        followed(engines[1]) as there,
    ):
        chance = random.Random(200 + seed)
        operations = [Operations(engine, chance) for engine in engines]
        for _ in range(STEPS // 6):
            await asyncio.gather(*(chance.choice(operations).draw()() for _ in range(4)))
            for one in (here, there):
                await one.engine.sweep()
                await one.check_exact()


async def test_two_replicas_know_the_truth_within_a_moment_by_hints(postgres_url: str) -> None:
    async with (
        replicas_on(postgres_url, 2, hints=PostgresqlHints, tuning=PROMPT) as engines,
        followed(engines[0], hinting(engines[0])) as here,
        followed(engines[1], hinting(engines[1])) as there,
    ):
        await until(lambda: all(engine.replica.hints.working for engine in engines))
        operations = [Operations(engine, random.Random(seed)) for seed, engine in enumerate(engines)]
        for _ in range(STEPS // 4):
            await asyncio.gather(*(one.draw()() for one in operations))
            for one in (here, there):
                await one.engine.advance(0)  # a virtual clock is heard of with the next answer
                await one.check_exact()


def hinting(engine: Engine) -> list[Awaitable[None]]:
    """The loops by which a replica hints to others, and hears of them."""
    replica = engine.replica
    return [replica.relay.run(), replica.hints.listen(replica.heard)]


def _expect_every_kind(done: Counter[str]) -> None:
    """A test of chance must not be one of idleness."""
    kinds = {"create", "trigger", "claim", "clock", "limit", "finish"}
    assert not [kind for kind in kinds if not done[kind]], done
