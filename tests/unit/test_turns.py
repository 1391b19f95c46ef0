"""Turns: much work gives way, and only one part of it is done in a round of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stepwell_server.engine.spine.turns import PART, Turns


async def rounds_beside(*works: list[int]) -> tuple[list[int], int]:
    """Do works beside each other. Returns how many parts were begun in each round of the loop, and all rounds."""
    turns = Turns()
    begun: list[int] = []
    rounds = 0

    def parts(work: list[int]):  # type: ignore[no-untyped-def]
        for amount in work:
            begun.append(rounds)
            yield amount

    tasks = [asyncio.create_task(turns.work(parts(work))) for work in works]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        rounds += 1
    return [begun.count(one) for one in range(1, rounds)], rounds


async def test_work_that_is_small_is_done_at_once() -> None:
    _, rounds = await rounds_beside([10, 10, 10])

    assert rounds == 1


async def test_much_work_lets_others_have_their_turn_after_each_part() -> None:
    begun, rounds = await rounds_beside([PART] * 20)

    assert rounds > 20
    assert max(begun) == 1


async def test_small_parts_count_together() -> None:
    _, rounds = await rounds_beside([PART // 4] * 40)

    assert rounds > 10


async def test_items_are_taken_in_parts() -> None:
    taken = 0

    async def take() -> None:
        nonlocal taken
        async for item in Turns().over(range(1, 41), PART // 4):
            taken = item

    taking = asyncio.create_task(take())
    counts = []
    while not taking.done():
        await asyncio.sleep(0)
        counts.append(taken)

    assert counts == [4 * (number + 1) for number in range(10)] + [40]


async def test_of_several_works_one_goes_on_in_a_round() -> None:
    begun, _ = await rounds_beside(*[[PART] * 10] * 20)

    assert max(begun) <= 1


async def test_refusals_take_turns_as_well() -> None:
    turns = Turns()
    rounds = 0

    def refuse() -> Iterator[int]:
        raise ValueError
        yield 0

    async def all_refused() -> None:
        for _ in range(10):
            with pytest.raises(ValueError):
                await turns.work(refuse())

    refused = asyncio.create_task(all_refused())
    while not refused.done():
        await asyncio.sleep(0)
        rounds += 1

    assert rounds > 10
