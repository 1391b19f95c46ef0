"""Sleeps: they end at the time that was stored when they began, whatever happens in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell import App, InstanceStatus, StepStatus, StepType, workflow
from tests.behaviour.workflows.conftest import StartHarness

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
YEAR = timedelta(days=365)
INSTANT = timedelta(microseconds=1)


@workflow("sleeper")
async def sleeper(event, step):
    await step.sleep("nap", event.payload["length"])
    return await step.do("wake", lambda: "awake")


async def test_a_sleep_ends_at_its_time_and_not_before(harness: StartHarness) -> None:
    """Behaviours 113, 115."""
    h = await harness(sleeper)
    began = await h.now()
    instance = await h.start(sleeper, {"length": "1 hour"})

    waiting = await instance.status()
    assert (waiting.status, waiting.wake_at) == (InstanceStatus.WAITING, began + HOUR)
    nap = (await h.steps(instance))["nap"]
    assert (nap.type, nap.status, nap.wake_at) == (StepType.SLEEP, StepStatus.WAITING, began + HOUR)

    await h.advance(HOUR - INSTANT)
    assert (await instance.status()).status == InstanceStatus.WAITING
    await h.advance(INSTANT)

    ended = await instance.status()
    assert (ended.status, ended.output, ended.ended_at) == (InstanceStatus.COMPLETE, "awake", began + HOUR)
    assert (await h.steps(instance))["nap"].status == StepStatus.COMPLETED


async def test_a_sleep_until_an_instant_ends_at_exactly_that_instant(harness: StartHarness) -> None:
    """Behaviour 114."""
    h = await harness()
    instant = await h.now() + timedelta(days=2, microseconds=7)

    @workflow("until")
    async def until(event, step):
        await step.sleep_until("morning", instant)

    await h.start_worker(App(workflows=[until]))
    instance = await h.start(until)

    assert (await h.steps(instance))["morning"].wake_at == instant
    await h.advance("3 days")
    assert (await instance.status()).ended_at == instant


async def test_a_sleep_that_is_over_when_it_begins_holds_up_nothing(harness: StartHarness) -> None:
    """Behaviours 116, 117."""
    h = await harness()
    past = await h.now() - HOUR

    @workflow("brief")
    async def brief(event, step):
        await step.sleep("not at all", 0)
        await step.sleep_until("an hour ago", past)
        return "done"

    await h.start_worker(App(workflows=[brief]))
    instance = await h.start(brief)

    assert (await instance.status()).output == "done"


async def test_a_sleep_is_at_most_a_year(harness: StartHarness) -> None:
    """Behaviour 118."""
    h = await harness(sleeper)
    longest = await h.start(sleeper, {"length": "365 days"})
    too_long = await h.start(sleeper, {"length": 365 * 86_400_000 + 1})

    assert (await too_long.status()).status == InstanceStatus.ERRORED
    await h.advance(YEAR - INSTANT)
    assert (await longest.status()).status == InstanceStatus.WAITING
    await h.advance(INSTANT)
    assert (await longest.status()).status == InstanceStatus.COMPLETE


async def test_a_sleep_until_an_instant_beyond_a_year_fails_for_that_reason(harness: StartHarness) -> None:
    h = await harness()
    instant = await h.now() + YEAR + HOUR

    @workflow("until")
    async def until(event, step):
        await step.sleep_until("too far", instant)

    await h.start_worker(App(workflows=[until]))
    error = (await (await h.start(until)).status()).error

    assert error is not None and error.name == "DURATION_OUT_OF_RANGE"


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_sleeps_in_sequence_take_their_time_each(harness: StartHarness, cache: int) -> None:
    """Behaviour 119."""

    @workflow("twice")
    async def twice(event, step):
        await step.sleep("first", "1 hour")
        await step.sleep("second", "1 hour")

    h = await harness(twice, cache=cache)
    began = await h.now()
    instance = await h.start(twice)
    await h.advance(HOUR)

    assert (await instance.status()).wake_at == began + 2 * HOUR
    await h.advance(HOUR)
    assert (await instance.status()).status == InstanceStatus.COMPLETE


@pytest.mark.parametrize(
    ("length", "meant"),
    [(1500, 1.5), ("10 seconds", 10), ("1.5 h", 5400), ("24 HOURS", 86_400), ("1 day", 86_400), ("5m", 300)],
)
async def test_durations_are_written_as_people_write_them(
    harness: StartHarness, length: int | str, meant: float
) -> None:
    """Behaviour 120; the whole grammar is in tests/sdk/test_durations.py."""
    h = await harness(sleeper)
    began = await h.now()
    instance = await h.start(sleeper, {"length": length})

    assert (await instance.status()).wake_at == began + meant * SECOND


@pytest.mark.parametrize("length", ["10 fortnights", "", -1, "-1 s"])
async def test_a_duration_that_is_none_fails_the_workflow(harness: StartHarness, length: int | str) -> None:
    """Behaviour 120."""
    h = await harness(sleeper)
    instance = await h.start(sleeper, {"length": length})

    error = (await instance.status()).error
    assert error is not None and error.name == "ValueError"


async def test_a_sleeper_wakes_at_its_time_although_the_worker_was_replaced(harness: StartHarness) -> None:
    """Behaviour 121."""
    h = await harness(sleeper)
    began = await h.now()
    instance = await h.start(sleeper, {"length": "1 hour"})
    await h.advance("20 minutes")

    await h.replace_worker()
    await h.advance("2 hours")

    assert (await instance.status()).ended_at == began + HOUR


async def test_neither_events_nor_replays_postpone_a_sleep(harness: StartHarness) -> None:
    """Behaviour 113, and defect 1 of behaviours.md 2.4."""
    h = await harness(sleeper, cache=0)
    began = await h.now()
    instance = await h.start(sleeper, {"length": "1 hour"})

    await h.advance("30 minutes")
    await h.send_event(instance, "stray", None)
    await instance.pause()
    await instance.resume()
    await h.run_until_idle()

    assert (await instance.status()).wake_at == began + HOUR
    await h.advance("30 minutes")
    assert (await instance.status()).status == InstanceStatus.COMPLETE


async def test_a_year_of_monthly_sleeps_is_over_in_a_moment(harness: StartHarness) -> None:
    """Issue 4, point 5: the test kit."""

    @workflow("year")
    async def year(event, step):
        for month in range(12):
            await step.sleep(f"month {month}", "30 days")
        return "a year older"

    h = await harness(year)
    began = await h.now()
    instance = await h.start(year)
    await h.advance("365 days")

    ended = await instance.status()
    assert (ended.output, ended.ended_at) == ("a year older", began + timedelta(days=360))
