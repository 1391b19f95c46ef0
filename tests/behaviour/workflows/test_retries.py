"""Retries: how often a step is executed, when, and what becomes of it if that does not help."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, InstanceStatus, NonRetryableError, Retry, StepStatus, workflow
from stepwell.testing import Harness
from tests.behaviour.workflows.conftest import LeasesLapse, StartHarness
from tests.support.workers.workflows import Gate

SECOND = timedelta(seconds=1)
INSTANT = timedelta(microseconds=1)


class Declined(Exception):
    """What the bodies of these tests fail with."""


def failing(times: float, retries: Any = None, **options: Any) -> tuple[Any, list[int]]:
    """A workflow whose step fails so often before it succeeds, and the executions that there were."""
    calls: list[int] = []

    @workflow("failing")
    async def workflow_(event, step):
        async def body():
            calls.append(len(calls) + 1)
            if len(calls) <= times:
                raise Declined(f"execution {len(calls)}")
            return "paid"

        return await step.do("pay", body, retries=retries, **options)

    return workflow_, calls


async def delays(h: Harness, instance: Any) -> list[float]:
    """Seconds that lie between the executions of the step, moving the clock from one to the next."""
    waits = []
    while (await instance.status()).status == InstanceStatus.WAITING:
        step = (await h.steps(instance))["pay"]
        assert step.next_retry_at is not None
        wait = step.next_retry_at - await h.now()
        waits.append(wait / SECOND)
        await h.advance(wait)
    return waits


async def test_a_step_that_says_nothing_is_executed_six_times_at_most(harness: StartHarness) -> None:
    """Behaviours 150, 158."""
    program, calls = failing(math.inf)
    h = await harness(program)
    instance = await h.start(program)
    step = (await h.steps(instance))["pay"]
    assert (step.max_attempts, step.timeout) == (6, timedelta(minutes=10))

    assert await delays(h, instance) == [10, 20, 40, 80, 160]
    assert calls == [1, 2, 3, 4, 5, 6]
    ended = await instance.status()
    assert ended.error is not None
    assert (ended.error.name, ended.error.message) == ("Declined", "execution 6")
    step = (await h.steps(instance))["pay"]
    assert (step.status, step.attempts, step.error) == (StepStatus.ERRORED, 6, ended.error)


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
@pytest.mark.parametrize(("limit", "executions"), [(0, 1), (2, 3)])
async def test_a_limit_counts_retries(harness: StartHarness, limit: int, executions: int, cache: int) -> None:
    """Behaviours 151, 152, 158."""
    program, calls = failing(math.inf, {"limit": limit, "delay": "1 second"})
    h = await harness(program, cache=cache)
    instance = await h.start(program)
    await h.advance("1 day")

    step = (await h.steps(instance))["pay"]
    assert (len(calls), step.attempts, step.max_attempts) == (executions, executions, executions)
    error = (await instance.status()).error
    assert error is not None and (error.name, error.message) == ("Declined", f"execution {executions}")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retry(limit=3, delay="5 seconds", backoff="constant"), [5, 5, 5]),
        (Retry(limit=3, delay="5 seconds", backoff="linear"), [5, 10, 15]),
        (Retry(limit=3, delay="5 seconds", backoff="exponential"), [5, 10, 20]),
        (Retry(limit=3, delay="5 seconds"), [5, 10, 20]),
        (Retry(limit=3, delay="5 seconds", max_delay="8 seconds"), [5, 8, 8]),
        (Retry(max_attempts=4, delay=0), [0, 0, 0]),
    ],
    ids=["constant", "linear", "exponential", "nothing-said", "capped", "none"],
)
async def test_delays_grow_as_the_policy_says(harness: StartHarness, policy: Retry, expected: list[float]) -> None:
    """Behaviours 153, 154."""
    program, calls = failing(math.inf, policy)
    h = await harness(program)
    instance = await h.start(program)

    assert await delays(h, instance) == [delay for delay in expected if delay]
    assert len(calls) == 4


async def test_a_failed_execution_is_stored_with_the_time_of_the_next(harness: StartHarness) -> None:
    """Behaviours 155, 156, 157."""
    program, calls = failing(1)
    h = await harness(program, cache=0)
    failed = await h.now()
    instance = await h.start(program)

    step, waiting = (await h.steps(instance))["pay"], await instance.status()
    assert (step.status, step.attempts, step.next_retry_at) == (StepStatus.WAITING, 1, failed + 10 * SECOND)
    assert step.error is not None and step.error.message == "execution 1"
    assert (waiting.status, waiting.wake_at) == (InstanceStatus.WAITING, failed + 10 * SECOND)

    await h.advance(10 * SECOND - INSTANT)
    await h.send_event(instance, "stray")
    assert calls == [1]
    assert (await h.steps(instance))["pay"].next_retry_at == failed + 10 * SECOND
    await h.advance(INSTANT)

    step = (await h.steps(instance))["pay"]
    assert (step.status, step.attempts, step.error, step.next_retry_at) == (StepStatus.COMPLETED, 2, None, None)
    assert (await instance.status()).output == "paid"


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_a_failure_that_was_caught_stays_a_failure(harness: StartHarness, cache: int) -> None:
    """Behaviours 158, 159."""
    calls: list[str] = []

    @workflow("catching")
    async def catching(event, step):
        def body():
            calls.append("pay")
            raise Declined("no money")

        try:
            await step.do("pay", body, retries={"limit": 1, "delay": "1 second"})
        except Declined as declined:
            await step.sleep("think", "1 hour")
            return f"declined: {declined}"

    h = await harness(catching, cache=cache)
    instance = await h.start(catching)
    await h.advance("2 hours")

    assert (await instance.status()).output == "declined: no money"
    assert calls == ["pay"] * 2


async def test_an_error_that_is_not_retryable_ends_the_step_at_once(harness: StartHarness) -> None:
    """Behaviours 160, 161."""
    calls: list[str] = []

    @workflow("final")
    async def final(event, step):
        def body():
            calls.append("pay")
            raise NonRetryableError("card is stolen", name=event.payload.get("name"))

        await step.do("pay", body, retries={"limit": 5})

    h = await harness(final)
    plain, named = await h.start(final), await h.start(final, {"name": "CardStolen"})

    errors = [(await instance.status()).error for instance in (plain, named)]
    assert [(error.name, error.message) for error in errors if error] == [
        ("NonRetryableError", "card is stolen"),
        ("CardStolen", "card is stolen"),
    ]
    assert calls == ["pay"] * 2
    assert (await h.steps(plain))["pay"].status == StepStatus.ERRORED


async def test_the_author_decides_what_is_worth_a_retry(harness: StartHarness) -> None:
    """Behaviour 160; issue 4, point 4: is_retryable."""
    program, calls = failing(math.inf, Retry(delay="1 second", is_retryable=lambda error: "2" not in str(error)))
    h = await harness(program)
    instance = await h.start(program)
    await h.advance("1 hour")

    assert calls == [1, 2]
    assert (await instance.status()).status == InstanceStatus.ERRORED


async def test_a_step_that_kills_its_worker_is_not_executed_more_often_than_it_may(
    harness: StartHarness, leases_lapse: LeasesLapse
) -> None:
    """Behaviour 162; seed 001 section 5, "Attempt ceiling"."""
    gate = Gate()

    @workflow("deadly")
    async def deadly(event, step):
        await step.do("kill", gate, retries={"limit": 1, "delay": "1 second"})

    h = await harness(deadly)
    instance = await h.client.workflow(deadly).create()
    for _ in range(2):
        await gate.reached()
        await h.crash_worker()
        await leases_lapse()
        await h.start_worker()
    await h.run_until_idle()

    error = (await instance.status()).error
    assert error is not None
    assert (error.name, error.message) == ("StepMaxAttemptsExceeded", "STEP_MAX_ATTEMPTS_EXCEEDED")
    step = (await h.steps(instance))["kill"]
    assert (gate.count, step.attempts, step.status) == (2, 2, StepStatus.ERRORED)


async def test_many_workers_together_do_not_execute_a_step_more_often_than_it_may(harness: StartHarness) -> None:
    """Behaviours 163, 164; seed 001 section 5, "Attempt ceiling"."""
    program, calls = failing(math.inf, {"limit": 4, "delay": "1 second", "backoff": "constant"})
    h = await harness(program, cache=0)
    for _ in range(3):
        await h.start_worker()
    instance = await h.start(program)
    await h.advance("1 minute")

    assert (await instance.status()).status == InstanceStatus.ERRORED
    assert (len(calls), (await h.steps(instance))["pay"].attempts) == (5, 5)


async def test_a_step_keeps_the_maximum_that_it_began_with(harness: StartHarness) -> None:
    """Behaviour 169: what was stored with the step counts, not what a later deployment says."""
    first, calls = failing(math.inf, {"limit": 2, "delay": "1 second"})
    fewer, calls_of_fewer = failing(math.inf, {"limit": 0})
    more, calls_of_more = failing(math.inf, {"limit": 9, "delay": "1 second"})
    h = await harness(first)
    one = await h.start("failing")
    await h.replace_worker(App(workflows=[fewer]))
    await h.advance("1 minute")

    assert (len(calls), len(calls_of_fewer), (await h.steps(one))["pay"].attempts) == (1, 2, 3)

    await h.replace_worker(App(workflows=[first]))
    other = await h.start("failing")
    await h.replace_worker(App(workflows=[more]))
    await h.advance("1 hour")

    assert (len(calls_of_more), (await h.steps(other))["pay"].attempts) == (2, 3)


async def test_a_retry_happens_at_its_time_although_the_worker_was_replaced(harness: StartHarness) -> None:
    """Behaviour 170."""
    program, _ = failing(1)
    h = await harness(program)
    began = await h.now()
    instance = await h.start(program)
    await h.advance("4 seconds")
    await h.replace_worker()
    await h.advance("1 minute")

    assert (await instance.status()).ended_at == began + 10 * SECOND


async def test_a_step_may_be_tried_for_ever(harness: StartHarness) -> None:
    """Seed 003 6.2: limit supports infinity."""
    program, calls = failing(20, {"limit": math.inf, "delay": "1 hour", "backoff": "constant"})
    h = await harness(program)
    instance = await h.start(program)
    assert (await h.steps(instance))["pay"].max_attempts is None
    await h.advance("1 day")

    assert (await instance.status()).output == "paid"
    assert len(calls) == 21
