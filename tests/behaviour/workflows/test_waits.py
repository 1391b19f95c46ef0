"""Waits for events: which event a wait gets, and when it gets none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from stepwell import InstanceStatus, StepStatus, WaitForEventTimeoutError, workflow
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import Gate

HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


@workflow("waiter")
async def waiter(event, step):
    got = await step.wait_for_event("approval", type="approval", timeout=event.payload.get("timeout", "1 hour"))
    return [got.type, got.payload, got.timestamp.isoformat()]


@workflow("patient")
async def patient(event, step):
    try:
        got = await step.wait_for_event("approval", type="approval", timeout="1 hour")
    except WaitForEventTimeoutError as late:
        await step.sleep("think", "1 hour")
        return f"{late.code}: {late}"
    return got.payload


@workflow("two-waits")
async def two_waits(event, step):
    first = await step.wait_for_event("first", type="tick")
    await step.sleep("nap", "1 hour")
    second = await step.wait_for_event("second", type="tick")
    return [first.payload, second.payload]


async def test_an_event_that_was_there_before_is_taken_at_once(harness: StartHarness) -> None:
    """Behaviours 122, 126."""
    h = await harness(waiter)
    await h.stop_worker()
    instance = await h.client.workflow(waiter).create()
    sent = await h.now()
    await instance.send_event("approval", {"ok": True})
    await h.advance("5 minutes")
    await h.start_worker()
    await h.run_until_idle()

    assert (await instance.status()).output == ["approval", {"ok": True}, sent.isoformat()]
    [event] = await h.events(instance)
    assert (event.created_at, event.delivered_at) == (sent, sent + timedelta(minutes=5))
    assert event.consumed_by_step == "approval"


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_each_wait_takes_one_event_the_oldest_first(harness: StartHarness, cache: int) -> None:
    """Behaviours 123, 124, 125."""
    h = await harness(two_waits, cache=cache)
    instance = await h.start(two_waits)
    for number in range(3):
        await instance.send_event("tick", number)
    await h.run_until_idle()

    assert [event.consumed_by_step for event in await h.events(instance)] == ["first", "", ""]
    await h.advance("1 hour")
    assert (await instance.status()).output == [0, 1]
    assert [event.consumed_by_step for event in await h.events(instance)] == ["first", "second", ""]


async def test_two_waits_in_one_pass_get_an_event_each(harness: StartHarness) -> None:
    """Behaviour 124; a defect of behaviours.md 2.3."""

    @workflow("both")
    async def both(event, step):
        waits = (step.wait_for_event(name, type="tick") for name in ("one", "two"))
        return sorted(got.payload for got in await asyncio.gather(*waits))

    h = await harness(both)
    await h.stop_worker()
    instance = await h.client.workflow(both).create()
    await instance.send_event("tick", "a")
    await instance.send_event("tick", "b")
    await h.start_worker()
    await h.run_until_idle()

    assert (await instance.status()).output == ["a", "b"]


async def test_a_wait_is_stored_with_its_deadline(harness: StartHarness) -> None:
    """Behaviour 127."""
    h = await harness(waiter)
    began = await h.now()
    instance = await h.start(waiter)

    waiting = await instance.status()
    assert (waiting.status, waiting.wake_at) == (InstanceStatus.WAITING, began + HOUR)
    wait = (await h.steps(instance))["approval"]
    assert (wait.status, wait.event_type, wait.wake_at) == (StepStatus.WAITING, "approval", began + HOUR)


async def test_a_wait_takes_a_day_unless_told_otherwise(harness: StartHarness) -> None:
    """Behaviour 128."""

    @workflow("default")
    async def default(event, step):
        await step.wait_for_event("approval", type="approval")

    h = await harness(default)
    began = await h.now()
    instance = await h.start(default)

    assert (await instance.status()).wake_at == began + timedelta(days=1)


@pytest.mark.parametrize("length", [0, 999, 365 * 86_400_000 + 1])
async def test_a_wait_of_less_than_a_second_or_more_than_a_year_is_refused(harness: StartHarness, length: int) -> None:
    """Behaviour 129."""
    h = await harness(waiter)
    instance = await h.start(waiter, {"timeout": length})

    error = (await instance.status()).error
    assert error is not None and "WAIT_FOR_EVENT_TIMEOUT_RANGE" in error.message


@pytest.mark.parametrize("length", ["1 second", "365 days"])
async def test_a_wait_of_a_second_or_a_year_is_fine(harness: StartHarness, length: str) -> None:
    """Behaviour 129."""
    h = await harness(waiter)
    instance = await h.start(waiter, {"timeout": length})

    assert (await instance.status()).status == InstanceStatus.WAITING


async def test_a_wait_that_gets_nothing_fails_at_its_deadline(harness: StartHarness) -> None:
    """Behaviour 130."""
    h = await harness(waiter)
    began = await h.now()
    instance = await h.start(waiter)
    await h.advance(HOUR - INSTANT)
    assert (await instance.status()).status == InstanceStatus.WAITING
    await h.advance(HOUR)

    ended = await instance.status()
    assert ended.error is not None
    assert (ended.error.name, ended.error.message) == ("WaitForEventTimeoutError", "WAIT_FOR_EVENT_TIMEOUT")
    assert ended.ended_at == began + HOUR
    assert (await h.steps(instance))["approval"].status == StepStatus.ERRORED


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_a_timeout_that_was_caught_stays_a_timeout(harness: StartHarness, cache: int) -> None:
    """Behaviours 130, 131."""
    h = await harness(patient, cache=cache)
    instance = await h.start(patient)
    await h.advance("61 minutes")
    await h.send_event(instance, "approval", "too late")
    await h.advance("2 hours")

    assert (await instance.status()).output == "WAIT_FOR_EVENT_TIMEOUT: WAIT_FOR_EVENT_TIMEOUT"
    assert [event.delivered_at for event in await h.events(instance)] == [None]


@pytest.mark.parametrize("before", [INSTANT, timedelta(0)], ids=["before", "at-the-deadline"])
async def test_an_event_in_time_is_taken_however_late_that_happens(harness: StartHarness, before: timedelta) -> None:
    """Behaviour 132; seed 001 section 5, "late processing"."""
    h = await harness(patient)
    instance = await h.start(patient)
    await h.stop_worker()
    await h.advance(HOUR - before)
    await instance.send_event("approval", "in time")
    await h.advance("5 hours")
    await h.start_worker()
    await h.run_until_idle()

    assert (await instance.status()).output == "in time"


async def test_an_event_after_the_deadline_is_too_late_even_if_nobody_noticed_yet(harness: StartHarness) -> None:
    """Behaviours 133, 134; seed 001 section 5, "hard timeout"."""
    h = await harness(patient)
    instance = await h.start(patient)
    await h.stop_worker()
    await h.advance(HOUR + INSTANT)
    await instance.send_event("approval", "too late")
    await h.start_worker()
    await h.advance(HOUR)

    assert (await instance.status()).output == "WAIT_FOR_EVENT_TIMEOUT: WAIT_FOR_EVENT_TIMEOUT"
    [event] = await h.events(instance)
    assert (event.delivered_at, event.consumed_by_step) == (None, "")


async def test_an_event_too_late_for_one_wait_is_in_time_for_another(harness: StartHarness) -> None:
    """Behaviours 133, 134; trap 3 of behaviours.md: each wait is judged by its own deadline."""

    @workflow("both")
    async def both(event, step):
        waits = [step.wait_for_event(name, type="tick", timeout=name) for name in ("1 hour", "3 hours")]
        ended = await asyncio.gather(*waits, return_exceptions=True)
        return [getattr(one, "code", None) or one.payload for one in ended]

    h = await harness(both)
    instance = await h.start(both)
    await h.stop_worker()
    await h.advance("2 hours")
    await instance.send_event("tick", "in time for the second")
    await h.start_worker()
    await h.run_until_idle()

    assert (await instance.status()).output == ["WAIT_FOR_EVENT_TIMEOUT", "in time for the second"]
    assert [event.consumed_by_step for event in await h.events(instance)] == ["3 hours"]


async def test_an_event_of_another_type_leaves_the_wait_as_it_was(harness: StartHarness) -> None:
    """Behaviours 135, 138."""
    h = await harness(waiter, cache=0)
    began = await h.now()
    instance = await h.start(waiter)
    await h.advance("30 minutes")
    await h.send_event(instance, "refusal", None)
    await instance.pause()
    await instance.resume()
    await h.run_until_idle()

    waiting = await instance.status()
    assert (waiting.status, waiting.wake_at) == (InstanceStatus.WAITING, began + HOUR)
    assert (await h.steps(instance))["approval"].wake_at == began + HOUR
    assert [event.delivered_at for event in await h.events(instance)] == [None]


async def test_an_event_sent_just_before_the_wait_is_not_missed(harness: StartHarness) -> None:
    """Behaviour 136; trap 1 of behaviours.md."""
    gate = Gate()

    @workflow("late-waiter")
    async def late_waiter(event, step):
        await step.do("prepare", gate)
        return (await step.wait_for_event("approval", type="approval")).payload

    h = await harness(late_waiter)
    instance = await h.client.workflow(late_waiter).create()
    await gate.reached()
    await instance.send_event("approval", "early")
    gate.open()
    await h.run_until_idle()

    assert (await instance.status()).output == "early"


async def test_of_many_events_at_once_a_wait_takes_one(harness: StartHarness) -> None:
    """Behaviour 137."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await asyncio.gather(*(instance.send_event("approval", number) for number in range(10)), return_exceptions=True)
    await h.run_until_idle()

    assert (await instance.status()).status == InstanceStatus.COMPLETE
    taken = [event.delivered_at is not None for event in await h.events(instance)]
    assert taken.count(True) == 1 and taken[0]


async def test_an_event_may_say_nothing(harness: StartHarness) -> None:
    """Behaviour 139."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await h.send_event(instance, "approval")

    output = (await instance.status()).output
    assert output is not None and output[:2] == ["approval", None]


async def test_a_new_run_does_not_take_events_of_an_earlier_one(harness: StartHarness) -> None:
    """Behaviour 140."""
    h = await harness(two_waits)
    instance = await h.start(two_waits)
    await instance.send_event("tick", "old")
    await instance.send_event("tick", "old, not taken")
    await h.run_until_idle()
    await instance.restart()
    await h.run_until_idle()

    assert (await h.steps(instance))["first"].status == StepStatus.WAITING
    assert await h.events(instance) == []
    assert len(await h.events(instance, run_number=0)) == 2
    await h.send_event(instance, "tick", "new")
    assert (await h.steps(instance))["first"].result == "new"


async def test_deadlines_go_by_the_database_whatever_the_clocks_of_processes_say(harness: StartHarness) -> None:
    """Behaviour 141; seed 001 section 5, "Clock skew": here the two are more than an hour apart."""
    h = await harness(patient)
    await h.advance("2 hours")
    skew = await h.now() - datetime.now(UTC)
    assert skew > HOUR
    instance = await h.start(patient)
    await h.advance(HOUR - INSTANT)
    await h.send_event(instance, "approval", "in time")

    assert (await instance.status()).output == "in time"
