"""What every dispatcher promises: one pass at a time, one more at most, and nothing that stops it but `stop`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from stepwell import AlarmDispatcher, PollingDispatcher
from stepwell.dispatcher.dispatchers import Dispatcher
from tests.sdk.fake_processor import FakeProcessor, after
from tests.sdk.stage import ManualClock, settle


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def processor(clock: ManualClock) -> FakeProcessor:
    return FakeProcessor(clock)


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture(params=[PollingDispatcher, AlarmDispatcher], ids=["polling", "alarm"])
async def dispatcher(
    request: pytest.FixtureRequest, processor: FakeProcessor, clock: ManualClock, errors: list[BaseException]
) -> AsyncIterator[Dispatcher]:
    made: Dispatcher = request.param(processor, clock=clock, on_error=errors.append)
    yield made
    if processor.gate is not None:
        processor.gate.set()
    await made.stop()


@pytest.mark.parametrize("wakes_at", [None, 1000.0])
async def test_a_wake_makes_a_pass_at_once_whatever_the_next_wake_is(
    dispatcher: Dispatcher, processor: FakeProcessor, wakes_at: float | None
) -> None:
    processor.wakes_at = wakes_at
    dispatcher.start()
    await settle()
    assert processor.passes == []

    dispatcher.wake()
    await settle()

    assert len(processor.passes) == 1


async def test_a_wake_is_not_handled_within_its_callers_stack(dispatcher: Dispatcher, processor: FakeProcessor) -> None:
    dispatcher.wake()
    dispatcher.wake()
    assert processor.passes == []

    await settle()
    assert len(processor.passes) == 1


@pytest.mark.parametrize("wakes", [1, 2, 50])
async def test_wakes_during_a_pass_give_exactly_one_further_pass(
    dispatcher: Dispatcher, processor: FakeProcessor, wakes: int
) -> None:
    processor.gate = asyncio.Event()
    dispatcher.start()
    dispatcher.wake()
    await settle()
    for _ in range(wakes):
        dispatcher.wake()
        await settle()
    assert len(processor.passes) == 1

    processor.gate.set()
    await settle()

    assert (len(processor.passes), processor.most_running) == (2, 1)


async def test_what_is_due_by_time_never_starts_a_second_pass_beside_the_running_one(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.gate = asyncio.Event()
    processor.wakes_at = 0.0
    dispatcher.start()
    dispatcher.wake()
    await after(clock, 12, step=0.1)
    assert len(processor.passes) == 1

    processor.wakes_at = None
    processor.gate.set()
    await settle()

    assert (len(processor.passes), processor.most_running) == (1, 1)


async def test_stopping_lets_the_running_pass_complete_and_nothing_new_start(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.gate = asyncio.Event()
    processor.wakes_at = 0.0
    dispatcher.start()
    dispatcher.wake()
    await settle()
    dispatcher.wake()

    stopping = asyncio.create_task(dispatcher.stop())
    await settle()
    assert not stopping.done() and processor.running == 1
    processor.gate.set()
    await stopping
    dispatcher.wake()
    await after(clock, 12, step=0.1)

    assert (len(processor.passes), processor.running) == (1, 0)
    assert clock.open_timers() == 0


async def test_stopping_does_not_wait_for_an_answer_about_the_next_wake(
    dispatcher: Dispatcher, processor: FakeProcessor
) -> None:
    processor.look_gate = asyncio.Event()
    dispatcher.start()
    await settle()
    assert processor.looks == 1

    await asyncio.wait_for(dispatcher.stop(), 5)

    assert processor.passes == []


async def test_stopping_before_starting_is_harmless(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    await dispatcher.stop()
    await dispatcher.stop()
    processor.wakes_at, processor.count = 0.0, 0
    dispatcher.start()
    await after(clock, 0.02)

    assert len(processor.passes) == 1


async def test_starting_and_stopping_without_a_breath_between_leaves_it_usable(
    dispatcher: Dispatcher, processor: FakeProcessor
) -> None:
    dispatcher.start()
    await dispatcher.stop()
    dispatcher.start()
    dispatcher.wake()
    await settle()

    assert len(processor.passes) == 1


async def test_starting_twice_is_one_timer(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.wakes_at = 1000.0
    dispatcher.start()
    dispatcher.start()
    await settle()

    assert clock.open_timers() == 1


async def test_starting_while_a_stop_waits_is_one_timer_too(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.gate = asyncio.Event()
    processor.wakes_at = 1000.0
    dispatcher.start()
    dispatcher.wake()
    await settle()
    stopping = asyncio.create_task(dispatcher.stop())
    await settle()

    dispatcher.start()
    processor.gate.set()
    await stopping
    await settle()

    assert clock.open_timers() == 1


async def test_starting_while_a_stop_takes_back_a_look_makes_it_look_anew(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.look_gate = asyncio.Event()
    dispatcher.start()
    await settle()
    stopping = asyncio.create_task(dispatcher.stop())
    await asyncio.sleep(0)
    dispatcher.start()
    processor.look_gate.set()
    await stopping
    await settle()

    assert processor.looks == 2


async def test_a_processor_may_stop_its_own_dispatcher(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def process() -> int:
        processor.passes.append(clock.now())
        await dispatcher.stop()
        return 1

    monkeypatch.setattr(processor, "process", process)
    processor.wakes_at = 1000.0
    dispatcher.start()
    dispatcher.wake()
    await after(clock, 12, step=0.1)

    assert len(processor.passes) == 1
    assert clock.open_timers() == 0


@pytest.mark.parametrize("error", [RuntimeError("no database"), asyncio.CancelledError("of something inside")])
async def test_an_error_of_a_pass_is_told_and_the_dispatcher_goes_on(
    dispatcher: Dispatcher,
    processor: FakeProcessor,
    clock: ManualClock,
    errors: list[BaseException],
    error: BaseException,
) -> None:
    processor.wakes_at, processor.backlog = 0.0, 1
    processor.pass_fails = error
    dispatcher.start()
    await after(clock, 0.05)
    assert errors == [error]

    processor.pass_fails = None
    await after(clock, 6)

    assert len(processor.passes) >= 2
    assert errors == [error]


async def test_an_error_of_the_next_wake_is_told_and_the_dispatcher_goes_on(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock, errors: list[BaseException]
) -> None:
    processor.look_fails = OSError("no route")
    dispatcher.start()
    await settle()
    assert errors == [processor.look_fails]

    processor.look_fails = None
    processor.wakes_at, processor.backlog = 8.0, 20
    await after(clock, 11)

    assert [at for at in processor.passes if at >= 8.0]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_callback_that_raises_is_survived(
    processor: FakeProcessor, clock: ManualClock, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def at_once(_error: BaseException) -> None:
        raise KeyError("the callback's own bug")

    async def later(_error: BaseException) -> None:
        raise KeyError("the callback's own bug")

    callback: Callable[[BaseException], object] = later if is_async else at_once
    processor.wakes_at = 0.0
    processor.pass_fails = RuntimeError("no database")
    async with PollingDispatcher(processor, clock=clock, on_error=callback):
        await after(clock, 5.1)
        assert len(processor.passes) == 2

    assert "the callback's own bug" in caplog.text


async def test_an_async_error_callback_is_awaited(processor: FakeProcessor, clock: ManualClock) -> None:
    told: list[BaseException] = []

    async def callback(error: BaseException) -> None:
        await asyncio.sleep(0)
        told.append(error)

    processor.pass_fails = RuntimeError("no database")
    async with PollingDispatcher(processor, clock=clock, on_error=callback) as dispatcher:
        dispatcher.wake()
        await settle()

    assert told == [processor.pass_fails]


async def test_without_an_error_callback_errors_are_logged(
    processor: FakeProcessor, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    processor.wakes_at = 0.0
    processor.pass_fails = RuntimeError("no database")
    with caplog.at_level(logging.ERROR):
        async with AlarmDispatcher(processor, clock=clock):
            await after(clock, 0.05)

    [record] = [one for one in caplog.records if one.name == "stepwell.dispatcher"]
    assert "namespace=default: no database" in record.getMessage()


async def test_after_an_outage_of_a_minute_it_resumes_by_itself_with_one_timer(
    dispatcher: Dispatcher, processor: FakeProcessor, clock: ManualClock, errors: list[BaseException]
) -> None:
    processor.wakes_at, processor.count = 0.0, 0
    processor.pass_fails = processor.look_fails = ConnectionError("the database is away")
    dispatcher.start()
    await after(clock, 60, step=0.1)
    assert 10 <= len(errors) <= 40  # it tried on, and not in a frenzy
    assert clock.open_timers() == 1

    processor.pass_fails = processor.look_fails = None
    before = len(processor.passes)
    await after(clock, 5.1)

    assert len(processor.passes) > before
    assert clock.open_timers() == 1
