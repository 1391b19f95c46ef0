"""Terminate and restart: the end of a run, and the beginning of another."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Instance, InstanceStatus, StepStatus, WorkflowTerminated, workflow
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import Gate, refused


@workflow("sleeper")
async def sleeper(event, step):
    await step.do("lie down", lambda: event.payload)
    await step.sleep("nap", "1 hour")
    return await step.do("get up", lambda: "up")


async def status(instance: Instance[Any]) -> InstanceStatus:
    return (await instance.status()).status


async def test_a_terminated_instance_is_over_at_once_whatever_it_did(harness: StartHarness) -> None:
    """Behaviours 186, 187, 189."""
    h = await harness(sleeper)
    waiting, paused = await h.start(sleeper), await h.start(sleeper)
    await paused.pause()
    await h.stop_worker()
    queued = await h.client.workflow(sleeper).create()
    now = await h.now()
    for instance in (waiting, paused, queued):
        await instance.terminate()
        ended = await instance.status()
        assert (ended.status, ended.ended_at, ended.output, ended.error) == (InstanceStatus.TERMINATED, now, None, None)
        assert await refused(instance.terminate()) == "INSTANCE_TERMINAL"
        with pytest.raises(WorkflowTerminated):
            await instance.result(timeout="5 seconds")

    before = [await instance.status() for instance in (waiting, paused, queued)]
    await h.start_worker()
    await h.advance("1 day")
    assert [await instance.status() for instance in (waiting, paused, queued)] == before
    assert "get up" not in await h.steps(waiting)


@pytest.mark.parametrize("ends", ["completes", "fails"])
async def test_an_ended_instance_cannot_be_terminated(harness: StartHarness, ends: str) -> None:
    """Behaviour 187."""

    @workflow("ending")
    async def ending(event, step):
        if ends == "fails":
            raise ValueError("as told")

    h = await harness(ending)
    instance = await h.start(ending)

    assert await refused(instance.terminate()) == "INSTANCE_TERMINAL"
    assert await status(instance) == (InstanceStatus.ERRORED if ends == "fails" else InstanceStatus.COMPLETE)


async def test_a_step_that_executes_during_a_termination_changes_nothing_any_more(harness: StartHarness) -> None:
    """Behaviours 186, 188."""
    gate = Gate("late")

    @workflow("busy")
    async def busy(event, step):
        await step.do("work", gate)
        await step.do("more", lambda: "never")

    h = await harness(busy)
    instance = await h.client.workflow(busy).create()
    await gate.reached()
    await instance.terminate()
    ended = await instance.status()
    assert ended.status == InstanceStatus.TERMINATED
    gate.open()
    await h.run_until_idle()

    assert await instance.status() == ended
    assert [step.result for step in (await h.steps(instance)).values()] in ([], [None])


@pytest.mark.parametrize("from_status", ["queued", "running", "waiting", "paused", "complete", "errored", "terminated"])
async def test_a_restart_begins_a_new_run_from_any_status(harness: StartHarness, from_status: str) -> None:
    """Behaviours 190, 192."""
    gate = Gate()

    @workflow("any")
    async def program(event, step):
        if event.run_number:
            return await step.do("again", lambda: f"{event.payload} again")
        if from_status == "running":
            await step.do("work", gate)
        if from_status == "errored":
            raise ValueError("as told")
        if from_status != "complete":
            await step.sleep("nap", "1 hour")

    h = await harness(program)
    if from_status == "queued":
        await h.stop_worker()
    instance = await h.client.workflow(program).create(params="once")
    if from_status == "running":
        await gate.reached()
    else:
        await h.run_until_idle()
    if from_status in ("paused", "terminated"):
        await {"paused": instance.pause, "terminated": instance.terminate}[from_status]()
    assert await status(instance) == from_status

    await h.stop_worker()
    await instance.restart()
    new = await instance.status()
    assert (new.status, new.run_number, new.params) == (InstanceStatus.QUEUED, 1, "once")
    assert (new.output, new.error, new.started_at, new.ended_at) == (None, None, None, None)
    await h.start_worker()
    await h.run_until_idle()
    assert (await instance.status()).output == "once again"


async def test_a_restart_stops_what_still_executes(harness: StartHarness) -> None:
    """Behaviours 190, 192: the old run's result is not the new one's."""
    first, second = Gate("old"), Gate("new")

    @workflow("busy")
    async def busy(event, step):
        return await step.do("work", second if event.run_number else first)

    h = await harness(busy)
    instance = await h.client.workflow(busy).create()
    await first.reached()
    await instance.restart()
    await second.reached()
    first.open()
    second.open()
    await h.run_until_idle()

    assert (await instance.status()).output == "new"
    assert [step.result for step in (await h.steps(instance, run_number=0)).values()] in ([], [None])


async def test_earlier_runs_stay_readable(harness: StartHarness) -> None:
    """Behaviours 191, 192, 237."""
    calls: list[int] = []

    @workflow("logged")
    async def logged(event, step):
        await step.do("work", lambda: calls.append(event.run_number) or event.run_number)
        await step.wait_for_event("end", type="end")

    h = await harness(logged)
    instance = await h.start(logged)
    await h.send_event(instance, "end", "of run 0")
    await instance.restart()
    await h.run_until_idle()

    assert calls == [0, 1]
    assert (await h.steps(instance, run_number=0))["work"].result == 0
    assert [event.payload for event in await h.events(instance, run_number=0)] == ["of run 0"]
    assert (await h.steps(instance))["work"].result == 1
    assert await refused(instance.history(run_number=2)) == "RUN_NOT_FOUND"


async def test_timers_of_an_earlier_run_do_not_move_the_new_one(harness: StartHarness) -> None:
    """Behaviour 193."""
    h = await harness(sleeper)
    instance = await h.start(sleeper)
    await h.advance("30 minutes")
    await instance.restart()
    await h.advance("59 minutes")

    assert await status(instance) == InstanceStatus.WAITING
    await h.advance("1 minute")
    assert await status(instance) == InstanceStatus.COMPLETE


async def test_a_new_run_has_all_its_attempts_again(harness: StartHarness) -> None:
    """Behaviour 194."""

    @workflow("failing")
    async def failing(event, step):
        def body():
            raise ValueError("always")

        await step.do("try", body, retries={"limit": 1, "delay": "1 second"})

    h = await harness(failing)
    instance = await h.start(failing)
    await h.advance("1 minute")
    assert (await h.steps(instance))["try"].attempts == 2
    await instance.restart()
    await h.run_until_idle()

    step = (await h.steps(instance))["try"]
    assert (step.status, step.attempts) == (StepStatus.WAITING, 1)
    await h.advance("1 minute")
    assert (await h.steps(instance))["try"].attempts == 2


async def test_a_restart_from_a_step_keeps_what_was_done_before_it(harness: StartHarness) -> None:
    """Behaviour 192; design 8: from_step."""
    calls: list[str] = []

    @workflow("chain")
    async def chain(event, step):
        def body(name: str) -> Any:
            return lambda: calls.append(name) or f"{name}{event.run_number}"

        return [await step.do(name, body(name)) for name in ("a", "b", "c")]

    h = await harness(chain)
    instance = await h.start(chain)
    await instance.restart(from_step="b")
    await h.run_until_idle()

    assert (await instance.status()).output == ["a0", "b1", "c1"]
    assert calls == ["a", "b", "c", "b", "c"]
    assert await refused(instance.restart(from_step="z")) == "STEP_NOT_FOUND"
