"""Timeouts of steps: each execution has its time, by the clock that decides."""

from __future__ import annotations

from datetime import timedelta
from threading import Event as ThreadEvent

from stepwell import Status, StepStatus, StepTimeoutError, workflow
from tests.support.workflows import Gate
from tests.workflows.conftest import StartHarness

MINUTE = timedelta(minutes=1)


async def test_an_execution_that_takes_too_long_counts_as_failed_and_is_tried_again(harness: StartHarness) -> None:
    """Behaviours 165, 168."""
    gate = Gate()

    @workflow("slow")
    async def slow(event, step):
        await step.do("hang", gate, timeout="1 minute", retries={"limit": 1, "delay": "10 seconds"})

    h = await harness(slow)
    began = await h.now()
    instance = await h.start(slow)
    await h.advance("1 minute")

    step = (await h.steps(instance))["hang"]
    assert (step.status, step.attempts) == (StepStatus.WAITING, 1)
    assert step.error is not None
    assert (step.error.name, step.error.message) == ("StepTimeoutError", "STEP_TIMEOUT")
    assert step.next_retry_at == began + timedelta(seconds=70)

    await h.advance("69 seconds")
    assert (gate.count, (await instance.status()).status) == (2, Status.RUNNING)
    await h.advance("1 second")
    ended = await instance.status()
    assert ended.error is not None
    assert (ended.error.name, ended.ended_at) == ("StepTimeoutError", began + timedelta(seconds=130))


async def test_a_timeout_can_be_caught(harness: StartHarness) -> None:
    """Behaviour 166."""
    gate = Gate()

    @workflow("prudent")
    async def prudent(event, step):
        try:
            await step.do("hang", gate, timeout="1 minute", retries={"limit": 0})
        except StepTimeoutError as late:
            return late.code

    h = await harness(prudent)
    instance = await h.start(prudent)
    await h.advance("1 minute")

    assert (await instance.status()).output == "STEP_TIMEOUT"


async def test_a_step_in_time_leaves_no_timer_behind(harness: StartHarness) -> None:
    """Behaviour 167."""

    @workflow("quick")
    async def quick(event, step):
        await step.do("work", lambda: "done", timeout="1 minute")
        await step.sleep("nap", "1 hour")

    h = await harness(quick)
    began = await h.now()
    instance = await h.start(quick)
    waiting = await instance.status()
    assert waiting.wake_at == began + timedelta(hours=1)
    await h.advance("30 minutes")

    assert await instance.status() == waiting
    assert (await h.steps(instance))["work"].status == StepStatus.COMPLETED


async def test_a_result_that_comes_after_the_timeout_is_not_taken(harness: StartHarness) -> None:
    """Behaviour 109."""
    late, calls = ThreadEvent(), []

    @workflow("threaded")
    async def threaded(event, step):
        def body():  # in a thread, which nobody can stop
            calls.append("pay")
            if len(calls) == 1:
                late.wait(20)
                return "late"
            return "fresh"

        return await step.do("pay", body, timeout="1 minute", retries={"limit": 1, "delay": "1 minute"})

    h = await harness(threaded)
    instance = await h.start(threaded)
    await h.advance("90 seconds")
    late.set()
    await h.run_until_idle()
    assert (await h.steps(instance))["pay"].status == StepStatus.WAITING

    await h.advance("30 seconds")
    assert (await instance.status()).output == "fresh"
    assert (await h.steps(instance))["pay"].attempts == 2
