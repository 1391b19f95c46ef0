"""Alarm dispatchers: the alarm stands where the next wake is, and one that others have set is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stepwell import AlarmDispatcher
from tests.sdk.fake_processor import FakeProcessor, after
from tests.sdk.stage import ManualClock, settle


class SharedAlarm:
    """An alarm that somebody else may set as well, and that a test lets go off."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.calls: list[str] = []
        self.fails: Exception | None = None

    async def get(self) -> float | None:
        self._called("get")
        return self.at

    async def set(self, at: float) -> None:
        self._called("set")
        self.at = at

    async def clear(self) -> None:
        self._called("clear")
        self.at = None

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails is not None:
            raise self.fails


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def processor(clock: ManualClock) -> FakeProcessor:
    return FakeProcessor(clock)


@pytest.fixture
def alarm() -> SharedAlarm:
    return SharedAlarm()


@pytest.fixture
async def dispatcher(
    processor: FakeProcessor, clock: ManualClock, alarm: SharedAlarm
) -> AsyncIterator[AlarmDispatcher]:
    made = AlarmDispatcher(processor, clock=clock, alarm=alarm, on_error=lambda _error: None)
    yield made
    alarm.fails = None
    await made.stop()


async def go_off(dispatcher: AlarmDispatcher, alarm: SharedAlarm) -> None:
    alarm.at = None
    dispatcher.ring()
    await settle()


async def test_what_was_pending_before_sets_the_first_alarm(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    processor.wakes_at = 7.0
    dispatcher.start()
    await settle()

    assert (alarm.at, processor.passes) == (7.0, [])


async def test_nothing_pending_sets_no_alarm(dispatcher: AlarmDispatcher, alarm: SharedAlarm) -> None:
    dispatcher.start()
    await settle()

    assert alarm.calls == ["get"]


@pytest.mark.parametrize("fails", [None, RuntimeError("no database")])
async def test_the_alarm_is_set_for_the_next_wake_after_each_pass_also_a_failed_one(
    dispatcher: AlarmDispatcher,
    processor: FakeProcessor,
    clock: ManualClock,
    alarm: SharedAlarm,
    fails: Exception | None,
) -> None:
    processor.wakes_at = 0.0
    dispatcher.start()
    await settle()
    processor.pass_fails = fails
    for at in (20.0, 30.0, 15.0):
        processor.wakes_at = at
        await go_off(dispatcher, alarm)
        assert alarm.at == at


async def test_no_next_wake_after_a_pass_clears_the_alarm(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()
    assert alarm.at == 20.0

    processor.wakes_at = None
    dispatcher.wake()
    await settle()

    assert alarm.at is None


async def test_a_next_wake_in_the_past_sets_the_alarm_for_now(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, clock: ManualClock, alarm: SharedAlarm
) -> None:
    clock.advance(100)
    processor.wakes_at = 40.0
    dispatcher.start()
    await settle()
    assert alarm.at == 100.0

    await go_off(dispatcher, alarm)
    assert alarm.at == 100.0


async def test_its_own_alarm_is_moved_earlier_and_later(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    dispatcher.start()
    for at in (20.0, 10.0, 30.0):
        processor.wakes_at = at
        dispatcher.wake()
        await settle()
        assert alarm.at == at


async def test_an_earlier_alarm_of_somebody_else_is_not_moved(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    alarm.at = 5.0
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()
    assert alarm.at == 5.0

    processor.wakes_at = 30.0
    dispatcher.wake()
    await settle()
    assert alarm.at == 5.0

    await go_off(dispatcher, alarm)
    assert alarm.at == 30.0


async def test_a_later_alarm_of_somebody_else_is_moved_to_the_earlier_time(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    alarm.at = 50.0
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()

    assert alarm.at == 20.0


@pytest.mark.parametrize("stops", [False, True])
async def test_an_alarm_of_somebody_else_is_not_cleared(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm, stops: bool
) -> None:
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()
    alarm.at = 4.0  # somebody else's

    if stops:
        await dispatcher.stop()
    else:
        processor.wakes_at = None
        dispatcher.wake()
        await settle()

    assert alarm.at == 4.0


async def test_an_alarm_that_went_off_is_not_its_own_any_more(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()
    processor.wakes_at = None
    await alarm.set(20.0)  # by somebody else, for the same time
    dispatcher.ring()
    await settle()

    assert alarm.at == 20.0


async def test_stopping_clears_its_own_alarm(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, alarm: SharedAlarm
) -> None:
    processor.wakes_at = 20.0
    dispatcher.start()
    await settle()
    await dispatcher.stop()

    assert alarm.at is None


async def test_an_alarm_and_a_wake_at_once_are_one_pass_and_during_it_one_more(
    dispatcher: AlarmDispatcher, processor: FakeProcessor
) -> None:
    dispatcher.start()
    dispatcher.ring()
    dispatcher.wake()
    await settle()
    assert len(processor.passes) == 1

    processor.gate = asyncio.Event()
    dispatcher.ring()
    await settle()
    dispatcher.wake()
    dispatcher.ring()
    await settle()
    processor.gate.set()
    await settle()
    assert (len(processor.passes), processor.most_running) == (3, 1)


async def test_an_alarm_that_cannot_be_set_is_set_later(
    dispatcher: AlarmDispatcher, processor: FakeProcessor, clock: ManualClock, alarm: SharedAlarm
) -> None:
    processor.wakes_at = 60.0
    alarm.fails = ConnectionError("the alarm's service is away")
    dispatcher.start()
    await after(clock, 8)
    assert clock.open_timers() == 1
    assert 5 <= len(alarm.calls) <= 10

    alarm.fails = None
    await after(clock, 5)

    assert (alarm.at, processor.passes) == (60.0, [])


async def test_the_alarm_in_memory_goes_off_at_its_time(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.wakes_at = 3.0
    async with AlarmDispatcher(processor, clock=clock):
        await settle()
        clock.advance(2.99)
        await settle()
        assert processor.passes == []

        processor.wakes_at = 9.0
        clock.advance(0.01)
        await settle()
        clock.advance(6.0)
        await settle()
        assert processor.passes == [3.0, 9.0]


async def test_it_goes_on_at_once_while_there_is_more(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.wakes_at = 0.0
    async with AlarmDispatcher(processor, clock=clock):
        for _ in range(20):
            clock.advance(0)
            await settle()

    assert len(processor.passes) >= 19


async def test_a_pass_that_handles_nothing_is_not_repeated_at_once(
    processor: FakeProcessor, clock: ManualClock
) -> None:
    processor.wakes_at, processor.count = 0.0, 0
    async with AlarmDispatcher(processor, clock=clock):
        await after(clock, 22)

    waits = [later - earlier for earlier, later in zip(processor.passes, processor.passes[1:], strict=False)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], abs=0.021)


async def test_a_pass_that_handles_something_ends_the_pauses(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.wakes_at, processor.count = 0.0, 0
    async with AlarmDispatcher(processor, clock=clock):
        await after(clock, 7)
        processor.count = 1
        await after(clock, 5)
        processor.count, before = 0, len(processor.passes)
        await after(clock, 0.25)

    assert before < len(processor.passes) <= before + 3


async def test_a_pass_a_moment_too_early_costs_no_pause(processor: FakeProcessor, clock: ManualClock) -> None:
    processor.wakes_at, processor.count = 5.001, 0
    async with AlarmDispatcher(processor, clock=clock) as dispatcher:
        clock.advance(5.0)
        dispatcher.wake()
        await settle()
        clock.advance(0.001)
        await settle()

    assert processor.passes == pytest.approx([5.0, 5.001])


async def test_a_time_that_stands_still_does_not_make_it_spin(
    processor: FakeProcessor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor.count = 0
    monkeypatch.setattr(processor, "wake", lambda: type(processor).wake(FakeProcessor(ManualClock(), 0.001)))
    async with AlarmDispatcher(processor, clock=clock):
        await after(clock, 12)

    assert len(processor.passes) < 12
