"""Timeouts of steps: each execution has its time, by the clock that decides."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from threading import Event as ThreadEvent
from typing import Any

import pytest

from stepwell import App, InstanceStatus, StepStatus, StepTimeoutError, workflow
from stepwell.testing import Harness, StillBusy
from stepwell_server.engine import clock
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.servers.servers import StartServer
from tests.support.workers.workflows import Gate

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
    assert (gate.count, (await instance.status()).status) == (2, InstanceStatus.RUNNING)
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


async def test_a_body_whose_worker_lives_is_waited_for(harness: StartHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, looked = Gate(), asyncio.Event()
    loop, looks, look = asyncio.get_running_loop(), itertools.count(), clock._look

    def counted(*args: Any, **options: Any) -> Any:
        if gate.count and next(looks) == 3 * clock.HUNG_LOOKS:
            loop.call_soon_threadsafe(looked.set)
        return look(*args, **options)

    monkeypatch.setattr(clock, "_look", counted)

    @workflow("busy")
    async def busy(event, step):
        return await step.do("compute", gate)

    h = await harness(busy, hangs_after="1 hour")
    starting = asyncio.create_task(h.start(busy))
    await asyncio.wait([starting, asyncio.create_task(looked.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not starting.done()
    gate.open()

    instance = await starting
    assert (await instance.status()).status == InstanceStatus.COMPLETE


@pytest.mark.tuning(longest_advance=0.0)
async def test_a_body_that_is_waited_for_too_long_is_named(start_server: StartServer, sqlite_url: str) -> None:
    gate = Gate()
    server = await start_server(sqlite_url, virtual_clock=True)

    @workflow("endless")
    async def endless(event, step):
        await step.do("compute", gate)

    busy = Harness(App(workflows=[endless]), address=server.addresses.listen, hangs_after="1 hour", patience=0)
    async with busy as h:
        await h.client.workflow(endless).create(id="one")
        await gate.reached()
        with pytest.raises(StillBusy, match=r"endless/one \(step 'compute'\) still executes after 0 seconds"):
            await h.run_until_idle()
        gate.open()
