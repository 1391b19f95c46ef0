"""Stream dispatchers: told of every change of the next wake, through every reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from stepwell import CallFailed, StreamDispatcher
from tests.sdk.fake_processor import FakeSource, after
from tests.sdk.stage import ManualClock, settle

GONE = CallFailed(grpc.StatusCode.UNAVAILABLE, "gone")


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def source(clock: ManualClock) -> FakeSource:
    return FakeSource(clock)


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
async def dispatcher(
    source: FakeSource, clock: ManualClock, errors: list[BaseException]
) -> AsyncIterator[StreamDispatcher]:
    async with StreamDispatcher(source, clock=clock, on_error=errors.append) as made:
        await settle()
        yield made
        if source.gate is not None:
            source.gate.set()


async def test_it_sleeps_until_the_streamed_time(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.wakes_at = 30.0
    await source.tell()
    clock.advance(29.99)
    await settle()
    assert (source.passes, source.looks) == ([], 0)

    source.wakes_at = None
    clock.advance(0.01)
    await settle()

    assert source.passes == [30.0]


@pytest.mark.parametrize(("first", "then"), [(30.0, 10.0), (10.0, 30.0)], ids=["earlier", "later"])
async def test_a_change_moves_the_wake(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock, first: float, then: float
) -> None:
    for source.wakes_at in (first, then):
        await source.tell()
    source.wakes_at = None
    for _ in range(35):
        clock.advance(1)
        await settle()

    assert source.passes == [then]


async def test_a_change_to_nothing_calls_the_wake_off(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    for source.wakes_at in (10.0, None):
        await source.tell()
    clock.advance(100)
    await settle()

    assert source.passes == []
    assert clock.open_timers() == 0


async def test_news_during_a_pass_give_one_further_pass(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.gate, source.wakes_at = asyncio.Event(), 0.0
    await source.tell()
    clock.advance(0)
    await settle()
    for source.number in (2, 3, 4):
        await source.tell()
    source.wakes_at = None  # what is asked for after the pass: the news came before, or the answer did
    source.gate.set()
    await settle()
    clock.advance(0)
    await settle()

    assert (len(source.passes), source.most_running) == (2, 1)


async def test_news_older_than_a_pass_are_not_heeded_after_it(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.wakes_at = 0.0
    await source.tell()
    source.wakes_at = 40.0
    clock.advance(0)
    await settle()
    clock.advance(39)
    await settle()

    assert source.passes == [0.0]


async def test_repeated_values_do_not_end_a_pause_and_a_new_number_does(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.wakes_at, source.count = 0.0, 0
    await source.tell()
    await after(clock, 7)
    passes = len(source.passes)
    for _ in range(10):
        await source.tell()
        await after(clock, 0.02)
    assert len(source.passes) == passes

    source.number += 1
    await source.tell()
    await after(clock, 0.02)
    assert len(source.passes) == passes + 1


async def test_a_lost_stream_is_replaced_and_read_anew(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock, errors: list[BaseException]
) -> None:
    for lost in range(1, 4):
        await source.end(GONE)
        assert len(errors) == lost
        await after(clock, 5.1)
        assert len(source.streams) == lost + 1

    source.wakes_at = clock.now() + 3
    await source.tell()
    await after(clock, 3.02)
    assert len(source.passes) >= 1
    assert source.looks == len(source.passes)  # it never had to ask in between


async def test_a_server_that_goes_away_in_order_is_no_error(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock, errors: list[BaseException]
) -> None:
    await source.end()
    await after(clock, 0.2)

    assert (len(source.streams), errors) == (2, [])


async def test_reconnects_become_rarer(dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock) -> None:
    await source.end(GONE)
    for _ in range(6000):
        clock.advance(0.01)
        await settle_little()
        if source.streams[-1].empty():
            source.streams[-1].put_nowait(GONE)

    assert 12 < len(source.streams) < 60


async def settle_little() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_a_wake_that_is_known_is_kept_while_there_is_no_stream(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.wakes_at = 2.0
    await source.tell()
    await source.end(GONE)
    source.wakes_at = None
    await after(clock, 2.02)

    assert len(source.passes) == 1


async def test_where_streams_are_refused_it_asks_instead(
    dispatcher: StreamDispatcher, source: FakeSource, clock: ManualClock
) -> None:
    source.wakes_at = 1.0
    await source.end(CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams", "STREAM_LIMIT"))
    await after(clock, 1.02)

    assert len(source.passes) >= 1


async def test_stopping_ends_the_stream_and_the_alarm(
    source: FakeSource, clock: ManualClock, errors: list[BaseException]
) -> None:
    dispatcher = StreamDispatcher(source, clock=clock, on_error=errors.append)
    dispatcher.start()
    dispatcher.start()
    await settle()
    source.wakes_at = 5.0
    await source.tell()
    assert len(source.streams) == 1

    await dispatcher.stop()
    await after(clock, 12)

    assert (source.passes, errors, clock.open_timers()) == ([], [], 0)


async def test_an_error_callback_may_stop_it(source: FakeSource, clock: ManualClock) -> None:
    async def give_up(_error: BaseException) -> None:
        await dispatcher.stop()

    dispatcher = StreamDispatcher(source, clock=clock, on_error=give_up)
    dispatcher.start()
    await settle()
    source.wakes_at = 5.0
    await source.tell()
    await source.end(GONE)
    await after(clock, 12)

    assert (len(source.streams), source.passes, clock.open_timers()) == (1, [], 0)
