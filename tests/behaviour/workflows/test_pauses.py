"""Pause and resume: at the next step boundary, without stopping any clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Instance, InstanceStatus, StepStatus, WaitForEventTimeoutError, workflow
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import Gate, refused

SECOND = timedelta(seconds=1)


@workflow("sleeper")
async def sleeper(event, step):
    await step.sleep("nap", "10 seconds")
    return "awake"


@workflow("waiter")
async def waiter(event, step):
    try:
        return (await step.wait_for_event("approval", type="approval", timeout="1 hour")).payload
    except WaitForEventTimeoutError:
        return "timed out"


def gated(gate: Gate, **options: Any) -> Any:
    """A workflow of two steps, the first of which waits for the test."""

    @workflow("gated")
    async def gated_(event, step):
        first = await step.do("first", gate, **options)
        return [first, await step.do("second", lambda: "second")]

    return gated_


async def status(instance: Instance[Any]) -> InstanceStatus:
    return (await instance.status()).status


async def test_a_running_instance_pauses_after_the_step_that_executes(harness: StartHarness) -> None:
    """Behaviours 171, 173, 175, 176."""
    gate = Gate("first")
    program = gated(gate)
    h = await harness(program)
    instance = await h.client.workflow(program).create()
    await gate.reached()
    await instance.pause()
    assert await status(instance) == InstanceStatus.WAITING_FOR_PAUSE
    await instance.pause()
    assert await status(instance) == InstanceStatus.WAITING_FOR_PAUSE

    gate.open()
    await h.run_until_idle()
    assert await status(instance) == InstanceStatus.PAUSED
    assert (await h.steps(instance))["first"].result == "first"
    await instance.pause()
    await h.advance("1 day")
    assert await status(instance) == InstanceStatus.PAUSED
    assert "second" not in await h.steps(instance)

    await instance.resume()
    await h.run_until_idle()
    assert (await instance.status()).output == ["first", "second"]
    assert gate.count == 1


async def test_a_queued_or_waiting_instance_pauses_at_once(harness: StartHarness) -> None:
    """Behaviours 172, 176."""
    h = await harness(sleeper)
    waiting = await h.start(sleeper)
    await h.stop_worker()
    queued = await h.client.workflow(sleeper).create()
    for instance in (waiting, queued):
        await instance.pause()
        assert await status(instance) == InstanceStatus.PAUSED
    await h.start_worker()
    await h.advance("1 day")
    assert [await status(instance) for instance in (waiting, queued)] == [InstanceStatus.PAUSED] * 2
    assert await h.steps(queued) == {}

    await h.stop_worker()
    for instance in (waiting, queued):
        await instance.resume()
        assert await status(instance) == InstanceStatus.QUEUED


@pytest.mark.parametrize("ending", ["completes", "fails", "is terminated"])
async def test_an_ended_instance_cannot_be_paused_and_is_not_resumed(harness: StartHarness, ending: str) -> None:
    """Behaviours 174, 177."""

    @workflow("ending")
    async def ending_(event, step):
        if ending == "fails":
            raise ValueError("as told")
        if ending == "is terminated":
            await step.sleep("nap", "1 hour")

    h = await harness(ending_)
    instance = await h.start(ending_)
    if ending == "is terminated":
        await instance.terminate()
    before = await instance.status()

    assert await refused(instance.pause()) == "INSTANCE_TERMINAL"
    await instance.resume()
    await h.run_until_idle()
    assert await instance.status() == before


async def test_resuming_what_is_not_paused_changes_nothing(harness: StartHarness) -> None:
    """Behaviour 177."""
    gate = Gate("first")
    program = gated(gate)
    h = await harness(program, sleeper)
    waiting = await h.start(sleeper)
    running = await h.client.workflow(program).create()
    await gate.reached()
    before = [await instance.status() for instance in (waiting, running)]
    for instance in (waiting, running):
        await instance.resume()

    assert [await instance.status() for instance in (waiting, running)] == before
    gate.open()


async def test_a_pause_that_has_not_happened_yet_is_withdrawn_by_a_resumption(harness: StartHarness) -> None:
    """Behaviour 178."""
    gate = Gate("first")
    program = gated(gate)
    h = await harness(program)
    instance = await h.client.workflow(program).create()
    await gate.reached()
    await instance.pause()
    await instance.resume()
    assert await status(instance) == InstanceStatus.RUNNING
    gate.open()
    await h.run_until_idle()

    assert (await instance.status()).output == ["first", "second"]


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_a_pause_does_not_stop_the_clock_of_a_sleep(harness: StartHarness, cache: int) -> None:
    """Behaviours 175, 179, 180."""
    h = await harness(sleeper, cache=cache)
    instance = await h.start(sleeper)
    await h.advance("2 seconds")
    await instance.pause()
    await h.advance("58 seconds")
    assert await status(instance) == InstanceStatus.PAUSED
    resumed = await h.now()
    await instance.resume()
    await h.run_until_idle()

    ended = await instance.status()
    assert (ended.output, ended.ended_at) == ("awake", resumed)


async def test_a_resumed_sleeper_sleeps_on_until_its_time(harness: StartHarness) -> None:
    """Behaviours 113, 179."""
    h = await harness(sleeper)
    began = await h.now()
    instance = await h.start(sleeper)
    await instance.pause()
    await h.advance("4 seconds")
    await instance.resume()
    await h.advance("1 minute")

    assert (await instance.status()).ended_at == began + 10 * SECOND


async def test_a_deadline_that_passed_during_a_pause_is_a_timeout(harness: StartHarness) -> None:
    """Behaviours 180, 181."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await instance.pause()
    await h.advance("2 hours")
    await h.send_event(instance, "approval", "too late")
    await instance.resume()
    await h.run_until_idle()

    assert (await instance.status()).output == "timed out"


async def test_an_event_in_time_is_taken_although_the_instance_was_paused_over_its_deadline(
    harness: StartHarness,
) -> None:
    """Behaviour 182."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await instance.pause()
    await h.advance("30 minutes")
    await h.send_event(instance, "approval", "in time")
    await h.advance("2 hours")
    await instance.resume()
    await h.run_until_idle()

    assert (await instance.status()).output == "in time"


async def test_a_pause_during_the_last_step_keeps_its_result_for_later(harness: StartHarness) -> None:
    """Behaviour 183."""
    gate = Gate("done")

    @workflow("last")
    async def last(event, step):
        return await step.do("only", gate)

    h = await harness(last)
    instance = await h.client.workflow(last).create()
    await gate.reached()
    await instance.pause()
    gate.open()
    await h.run_until_idle()
    assert await status(instance) == InstanceStatus.PAUSED
    assert (await h.steps(instance))["only"].status == StepStatus.COMPLETED

    await instance.resume()
    await h.run_until_idle()
    assert (await instance.status()).output == "done"
    assert gate.count == 1


async def test_a_workflow_that_ends_while_a_pause_is_due_ends_after_the_resumption(harness: StartHarness) -> None:
    """Behaviour 183: also if it has no step at all."""
    gate = Gate("done")

    @workflow("stepless")
    async def stepless(event, step):
        return await gate()

    h = await harness(stepless)
    instance = await h.client.workflow(stepless).create()
    await gate.reached()
    await instance.pause()
    gate.open()
    await h.run_until_idle()
    assert await status(instance) == InstanceStatus.PAUSED

    await instance.resume()
    await h.run_until_idle()
    assert (await instance.status()).output == "done"


async def test_a_step_that_fails_while_a_pause_is_due_is_tried_again_after_the_resumption(
    harness: StartHarness,
) -> None:
    """Behaviours 180, 184."""
    gate, calls = Gate(), []

    @workflow("unlucky")
    async def unlucky(event, step):
        async def body():
            calls.append("try")
            await gate()
            if len(calls) == 1:
                raise ValueError("not this time")
            return "this time"

        return await step.do("try", body, retries={"delay": "10 seconds"})

    h = await harness(unlucky)
    failed = await h.now()
    instance = await h.client.workflow(unlucky).create()
    await gate.reached()
    await instance.pause()
    gate.open()
    await h.run_until_idle()
    step = (await h.steps(instance))["try"]
    assert await status(instance) == InstanceStatus.PAUSED
    assert (step.status, step.attempts, step.next_retry_at) == (StepStatus.WAITING, 1, failed + 10 * SECOND)
    await h.advance("1 hour")
    assert calls == ["try"]

    await instance.resume()
    await h.run_until_idle()
    assert (await instance.status()).output == "this time"


async def test_a_retry_that_is_not_due_yet_waits_for_its_time_after_a_resumption(harness: StartHarness) -> None:
    """Behaviours 156, 184."""
    calls: list[str] = []

    @workflow("eager")
    async def eager(event, step):
        def body():
            calls.append("try")
            if len(calls) == 1:
                raise ValueError("not this time")

        await step.do("try", body, retries={"delay": "10 seconds"})

    h = await harness(eager)
    failed = await h.now()
    instance = await h.start(eager)
    await instance.pause()
    await h.advance("2 seconds")
    await instance.resume()
    await h.run_until_idle()
    assert calls == ["try"]
    await h.advance("1 minute")

    assert (await instance.status()).ended_at == failed + 10 * SECOND


async def test_a_pause_during_a_replay_is_honoured_before_anything_new_begins(harness: StartHarness) -> None:
    """Behaviour 185: also where only remembered steps lie between the pause and the next one."""
    gate, replays, calls = Gate(), [], []

    @workflow("replayed")
    async def replayed(event, step):
        replays.append("replay")
        if len(replays) == 2:
            await gate()
        await step.do("first", lambda: calls.append("first"))
        await step.sleep("nap", "1 hour")
        await step.do("second", lambda: calls.append("second"))

    h = await harness(replayed, cache=0)
    instance = await h.start(replayed)
    moving = asyncio.create_task(h.advance("1 hour"))
    await gate.reached()
    await instance.pause()
    assert await status(instance) == InstanceStatus.WAITING_FOR_PAUSE
    gate.open()
    await moving
    assert (await status(instance), calls) == (InstanceStatus.PAUSED, ["first"])

    await instance.resume()
    await h.run_until_idle()
    assert (await status(instance), calls) == (InstanceStatus.COMPLETE, ["first", "second"])


async def test_paused_instances_are_no_work_and_starve_nobody(harness: StartHarness) -> None:
    """Behaviours 175, 220."""
    h = await harness(sleeper)
    paused = [await h.client.workflow(sleeper).create() for _ in range(20)]
    for instance in paused:
        await instance.pause()
    await h.advance("1 day")
    revisions = [(await instance.status()).revision for instance in paused]
    lively = await h.start(sleeper)
    await h.advance("10 seconds")

    assert await status(lively) == InstanceStatus.COMPLETE
    assert [(await instance.status()).revision for instance in paused] == revisions
