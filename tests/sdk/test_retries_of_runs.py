"""Executions that fail, take too long or are cancelled, and what the server's verdict sets off."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import NonRetryableError, Retry, StepFailed, StepTimeoutError
from stepwell.worker.host import Phase
from stepwell.worker.threads import ThreadPool
from tests.sdk.stage import LATER, Stage, failed, pending, settle, state, task_of, waiting


class Flaky:
    """Fails as often as it is told to."""

    def __init__(self, failures: int) -> None:
        self.calls = 0
        self.failures = failures

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"call {self.calls}")
        return "ok"


class Stuck:
    """Executes in its thread for as long as its gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._taken = threading.Event()

    def __call__(self) -> None:
        self._taken.set()
        self.gate.wait(10)

    async def taken(self) -> None:
        """Wait until a thread has begun with it."""
        while not self._taken.is_set():
            await asyncio.sleep(0)


def flaky_order(body: Any, **config: Any) -> Any:
    async def order(event: Any, step: Any) -> Any:
        return await step.do("a", body, **config)

    return order


async def test_a_failed_execution_suspends_the_run_until_the_server_says_so(stage: Stage) -> None:
    body = Flaky(1)
    run = await stage.begin(flaky_order(body))
    assert stage.kinds() == ["step_failed:a"]

    await stage.ack(run, 1, wake_at=LATER)
    assert stage.kinds() == ["suspend"]
    await stage.ack(run, 2, released=True)

    run.attach(1, 2, task_of(steps=[pending("a", attempts=1)], cached=True))
    await settle()
    frames = stage.take()
    assert [frame.WhichOneof("body") for frame in frames] == ["step_done", "finish"]
    assert (frames[0].step_done.attempt, body.calls) == (2, 2)


async def test_a_retry_under_the_same_lease_is_announced(stage: Stage) -> None:
    body = Flaky(1)
    run = await stage.begin(flaky_order(body))
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    stage.take()

    await stage.resolve(run, pending("a", attempts=1))
    assert (stage.kinds(), body.calls) == (["begin_steps +a"], 1)
    await stage.ack(run, 3)
    assert body.calls == 2


async def test_a_retry_in_a_status_of_a_newer_server_is_not_executed(stage: Stage) -> None:
    body = Flaky(1)
    run = await stage.begin(flaky_order(body))
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    stage.take()

    await stage.resolve(run, state("a", 99, attempts=1))
    assert ("begin_steps +a" in stage.kinds(), body.calls) == (False, 1)


@pytest.mark.parametrize("error", [ConnectionError("down"), NonRetryableError("down", "DeclinedByTheBank")])
async def test_the_last_failure_is_caught_as_on_a_replay_and_tells_what_caused_it(
    stage: Stage, error: Exception
) -> None:
    caught: list[StepFailed] = []

    def body() -> None:
        raise error

    async def order(event: Any, step: Any) -> None:
        try:
            await step.do("a", body)
        except StepFailed as raised:
            caught.append(raised)

    run = await stage.begin(order)
    told = stage.take()[0].step_failed.failure
    await stage.ack(run, 1)
    await stage.begin(order, failed("a", told.name, told.message, non_retryable=told.non_retryable))

    first, replayed = caught
    assert isinstance(first, type(error)) and isinstance(replayed, type(error))
    assert (first.name, first.message) == (replayed.name, replayed.message) == (told.name, "down")
    assert first.__cause__ is error


async def test_a_replayed_failure_is_caught_by_the_same_except(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> str:
        try:
            await step.do("a", lambda: None)
        except ConnectionError as error:
            assert isinstance(error, StepFailed)
            return str(error)
        return "no error"

    await stage.begin(order, failed("a", "ConnectionError", "down"))

    assert stage.take()[0].finish.output.json == '"down"'


async def test_executions_that_were_lost_count_and_the_ceiling_is_strict(stage: Stage) -> None:
    body = Flaky(0)

    run = await stage.begin(flaky_order(body, retries=Retry(limit=1)), pending("a", attempts=1), interruptions=1)

    told = stage.take()[0].step_failed
    assert (told.attempt, told.failure.name, told.failure.non_retryable) == (2, "StepMaxAttemptsExceeded", True)
    await stage.ack(run, 1)
    assert stage.take()[0].finish.failure.message == "STEP_MAX_ATTEMPTS_EXCEEDED"
    assert body.calls == 0


async def test_a_lower_maximum_in_the_code_does_not_end_a_step_that_the_server_wants_executed(stage: Stage) -> None:
    body = Flaky(0)

    await stage.begin(flaky_order(body, retries=Retry(limit=0)), pending("a", attempts=1))

    assert (stage.take()[0].step_done.attempt, body.calls) == (2, 1)


async def test_an_interruption_is_charged_to_the_first_bodies_only(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: 1)
        await step.do("b", lambda: 1)

    await stage.begin(order, interruptions=1)

    (frame,) = stage.take()
    assert (frame.step_done.attempt, frame.opens[0].attempt) == (2, 1)


async def test_what_is_not_retryable_says_so(stage: Stage) -> None:
    retry = Retry(limit=5, is_retryable=lambda error: not isinstance(error, ConnectionError))

    await stage.begin(flaky_order(Flaky(1), retries=retry))

    assert stage.take()[0].step_failed.failure.non_retryable


async def test_a_result_that_is_not_json_fails_that_step_for_good(stage: Stage) -> None:
    run = await stage.begin(flaky_order(lambda: object()))

    failure = stage.take()[0].step_failed.failure
    assert (failure.name, failure.non_retryable) == ("StepResultInvalid", True)
    assert "'a'" in failure.message and "object" in failure.message
    run.drop()


async def test_an_execution_that_takes_too_long_fails_and_is_cancelled(stage: Stage) -> None:
    cancelled: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    run = await stage.begin(flaky_order(slow, timeout="5 seconds"))
    stage.clock.advance(4.9)
    await settle()
    assert stage.kinds() == []

    stage.clock.advance(0.1)
    await settle()
    failure = stage.take()[0].step_failed.failure
    assert (failure.name, failure.message, cancelled) == ("StepTimeoutError", "STEP_TIMEOUT", [True])
    await stage.ack(run, 1)
    assert stage.take()[0].finish.failure.name == "StepTimeoutError"


async def test_a_thread_that_takes_too_long_is_left_alone_and_its_result_ignored(stage: Stage) -> None:
    body, ended = Stuck(), asyncio.Event()
    stage.pool = pool = ThreadPool(1)
    run = await stage.begin(flaky_order(body, timeout="5 seconds"))
    await body.taken()
    stage.clock.advance(5)
    await settle()
    assert stage.kinds() == ["step_failed:a"]

    body.gate.set()
    pool.call(lambda: None, lambda _: ended.set())  # served by the same thread, after the late body
    await ended.wait()
    await settle()
    assert stage.kinds() == []
    pool.close()
    run.drop()


async def test_a_body_that_the_server_gave_up_while_no_thread_was_free_never_begins(stage: Stage) -> None:
    gate, calls = threading.Event(), list[str]()
    stage.pool = pool = ThreadPool(1)
    pool.call(lambda: gate.wait(10), lambda _: None)
    run = await stage.begin(flaky_order(lambda: calls.append("called"), timeout="5 seconds"))
    run.cancel_step("a")

    gate.set()
    served = asyncio.Event()
    pool.call(lambda: None, lambda _: served.set())
    await served.wait()

    assert calls == []
    pool.close()
    run.drop()


async def test_the_time_of_a_body_begins_when_a_thread_takes_it(stage: Stage) -> None:
    busy, body = threading.Event(), Stuck()
    stage.pool = pool = ThreadPool(1)
    pool.call(lambda: busy.wait(10), lambda _: None)
    run = await stage.begin(flaky_order(body, timeout="5 seconds"))
    stage.clock.advance(7)  # in which no thread was free
    await settle()
    assert stage.kinds() == []

    busy.set()
    await body.taken()
    for seconds, told in ((3, []), (1.9, []), (0.1, ["step_failed:a"])):
        stage.clock.advance(seconds)
        await settle()
        assert stage.kinds() == told
    body.gate.set()
    pool.close()
    run.drop()


async def test_an_execution_may_begin_while_the_one_before_is_stuck_in_its_thread(stage: Stage) -> None:
    bodies = [Stuck(), Stuck()]
    calls = iter(bodies)
    stage.pool = pool = ThreadPool(2)
    run = await stage.begin(flaky_order(lambda: next(calls)(), timeout="5 seconds"))
    await bodies[0].taken()
    stage.clock.advance(5)
    await settle()
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    await stage.resolve(run, pending("a", attempts=1))
    stage.take()
    await stage.ack(run, 3)

    bodies[1].gate.set()
    while not stage.sent:
        await asyncio.sleep(0)
    assert stage.sent[0].HasField("step_done")
    bodies[0].gate.set()
    pool.close()


async def test_a_fast_step_leaves_no_timer(stage: Stage) -> None:
    await stage.begin(flaky_order(lambda: 1, timeout="5 seconds"))

    assert stage.clock.open_timers() == 0


async def test_the_server_can_time_an_execution_out(stage: Stage) -> None:
    run = await stage.begin(flaky_order(asyncio.Event().wait))

    run.cancel_step("a")
    await settle()
    assert stage.kinds() == []  # the server is about to say what it made of it

    await stage.resolve(run, waiting("a", attempts=1))
    assert stage.kinds() == ["suspend"]
    run.drop()


async def test_an_execution_that_the_function_cancels_is_a_failed_one(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> str:
        try:
            await asyncio.wait_for(step.do("a", asyncio.Event().wait), 0)
        except TimeoutError:
            return "gave up"
        return "done"

    async def patient(event: Any, step: Any) -> None:
        task = asyncio.create_task(step.do("a", asyncio.Event().wait))
        await step.do("b", lambda: 1)
        task.cancel()
        await step.do("c", lambda: 1)

    await stage.begin(order)
    assert stage.kinds() == ["finish"]  # it was cancelled before it began

    await stage.begin(patient)
    frames = stage.take()
    assert [frame.WhichOneof("body") for frame in frames] == ["step_done", "step_failed"]
    assert frames[1].step_failed.failure.name == "CancelledError"


def asked_again(times: int = 1) -> Any:
    """A workflow that gives a step up while its body executes, as often as is said, and asks for it again at once."""

    async def order(event: Any, step: Any) -> Any:
        for _ in range(times):
            call = asyncio.create_task(step.do("a", asyncio.Event().wait, retries={"limit": 0}))
            await step.do("b", lambda: 1)
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
        return await step.do("a", lambda: 2)

    return order


@pytest.mark.parametrize("times", [1, 2])
async def test_a_step_that_is_asked_for_again_waits_for_the_verdict_on_its_failure(stage: Stage, times: int) -> None:
    """A Suspend before it would rest on a retry that may never be."""
    run = await stage.begin(asked_again(times))
    assert stage.kinds() == ["step_done:b", "step_failed:a"]

    await stage.ack(run, 1, 2)
    assert stage.take()[0].finish.failure.name == "CancelledError"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_step_that_is_asked_for_again_is_executed_when_its_retry_is_due(stage: Stage, times: int) -> None:
    run = await stage.begin(asked_again(times))
    stage.take()
    await stage.ack(run, 1, 2, wake_at=LATER)
    assert stage.kinds() == ["suspend"]
    await stage.ack(run, 3, released=False)

    await stage.resolve(run, pending("a", attempts=1))
    await stage.ack(run, 4)
    begins, done, finish = stage.take()
    assert (begins.opens[0].attempt, done.step_done.attempt, finish.finish.output.json) == (2, 2, "2")


async def test_a_body_that_cancels_itself_fails_the_step_not_the_worker(stage: Stage) -> None:
    async def body() -> None:
        raise asyncio.CancelledError

    run = await stage.begin(flaky_order(body))
    await stage.ack(run, 1)

    assert stage.take()[-1].finish.failure.name == "CancelledError"


async def test_a_step_timeout_is_an_error_to_catch(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> str:
        with pytest.raises(StepTimeoutError):
            await step.do("a", lambda: 1)
        return "caught"

    run = await stage.begin(order, failed("a", "StepTimeoutError", "STEP_TIMEOUT"))

    assert stage.take()[0].finish.output.json == '"caught"'
    assert run.phase is Phase.FINISHING


class Odd(BaseException):
    """What no `except Exception` catches."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(1), Odd("odd"), Speechless()], ids=["exit", "odd", "speechless"])
@pytest.mark.parametrize("on_the_loop", [True, False], ids=["loop", "thread"])
async def test_a_body_may_raise_whatever_it_likes(stage: Stage, on_the_loop: bool, error: BaseException) -> None:
    def body() -> None:
        raise error

    async def async_body() -> None:
        raise error

    run = await stage.begin(flaky_order(async_body if on_the_loop else body))
    assert stage.take()[0].step_failed.failure.name == type(error).__name__

    await stage.ack(run, 1)
    assert stage.take()[0].finish.failure.name == type(error).__name__


async def test_a_test_of_the_author_that_wants_to_end_the_worker_counts_as_no(stage: Stage) -> None:
    def leave(error: Exception) -> bool:
        raise SystemExit

    await stage.begin(flaky_order(Flaky(1), retries=Retry(is_retryable=leave)))

    assert stage.take()[0].step_failed.failure.non_retryable


async def test_a_result_whose_own_code_fails_is_one_that_cannot_be_stored(stage: Stage) -> None:
    @dataclass
    class Broken:
        value: int = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "value":
                raise LookupError("gone")
            return super().__getattribute__(name)

    await stage.begin(flaky_order(Broken))

    failure = stage.take()[0].step_failed.failure
    assert failure.name == "StepResultInvalid" and "gone" in failure.message
