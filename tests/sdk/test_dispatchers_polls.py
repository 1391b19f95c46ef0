"""Polling dispatchers: each poll looks at the next wake first, and makes a pass only if something is due."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import PollingDispatcher
from tests.sdk.fake_processor import FakeProcessor, after
from tests.sdk.stage import ManualClock, settle


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def processor(clock: ManualClock) -> FakeProcessor:
    return FakeProcessor(clock)


async def test_it_polls_when_it_starts_and_every_five_seconds(processor: FakeProcessor, clock: ManualClock) -> None:
    async with PollingDispatcher(processor, clock=clock):
        await settle()
        for looks in (1, 2, 3):
            assert processor.looks == looks
            clock.advance(4.99)
            await settle()
            assert processor.looks == looks
            clock.advance(0.01)
            await settle()


@pytest.mark.parametrize("wakes_at", [None, 1000.0])
async def test_a_poll_with_nothing_due_makes_no_pass(
    processor: FakeProcessor, clock: ManualClock, wakes_at: float | None
) -> None:
    processor.wakes_at = wakes_at
    async with PollingDispatcher(processor, clock=clock):
        await after(clock, 20, step=1)

    assert (processor.looks, processor.passes) == (5, [])


@pytest.mark.parametrize("before", [0.0, 3.0])
async def test_a_poll_makes_one_pass_if_something_is_due(
    processor: FakeProcessor, clock: ManualClock, before: float
) -> None:
    async with PollingDispatcher(processor, clock=clock):
        await after(clock, 4, step=1)
        for at in (5.0, 10.0):
            processor.wakes_at, processor.backlog = at - before, 1
            await after(clock, 5, step=1)

    assert processor.passes == [5.0, 10.0]


async def test_passes_follow_each_other_while_they_hand_something_out_and_something_is_due(
    processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.wakes_at, processor.backlog = 0.0, 5
    async with PollingDispatcher(processor, clock=clock) as dispatcher:
        await settle()
        assert processor.passes == [0.0] * 5

        clock.advance(1)
        processor.wakes_at, processor.backlog = 1.0, 3
        dispatcher.wake()
        await settle()
        assert processor.passes[5:] == [1.0] * 3


async def test_a_poll_during_a_pass_is_made_up_for_after_it(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.gate, processor.wakes_at, processor.backlog = asyncio.Event(), 0.0, 2
    async with PollingDispatcher(processor, clock=clock):
        await after(clock, 12, step=1)
        processor.gate.set()
        await settle()

    assert (processor.passes, processor.most_running) == ([0.0, 12.0], 1)


async def test_polls_that_find_what_cannot_be_handed_out_keep_their_interval(
    processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.wakes_at, processor.count, processor.look_takes = 0.0, 0, 0.03
    async with PollingDispatcher(processor, clock=clock, pause="5 seconds"):
        await after(clock, 11)

    assert processor.passes == pytest.approx([0.0, 5.0, 10.0], abs=0.2)


async def test_a_pass_that_handles_nothing_is_not_repeated_at_once(
    processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.wakes_at = 0.0
    processor.count = 0
    async with PollingDispatcher(processor, clock=clock, interval="10 ms"):
        await after(clock, 12)

    waits = [round(later - earlier, 2) for earlier, later in zip(processor.passes, processor.passes[1:], strict=False)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0], abs=0.021)


async def test_a_changed_number_ends_the_pause_of_polls(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.wakes_at = 0.0
    processor.count = 0
    async with PollingDispatcher(processor, clock=clock, interval="10 ms"):
        await after(clock, 4)
        passes = len(processor.passes)
        processor.number += 1
        await after(clock, 0.02)

        assert len(processor.passes) == passes + 1


def test_an_interval_of_nothing_is_refused() -> None:
    async def make() -> None:
        with pytest.raises(ValueError, match="interval"):
            PollingDispatcher(FakeProcessor(ManualClock()), clock=ManualClock(), interval=0)

    asyncio.run(make())
