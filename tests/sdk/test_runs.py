"""A run that is held: what it sends, when its bodies begin, how it ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from stepwell import (
    DuplicateStepKey,
    InvalidStepName,
    MaxStepsExceeded,
    NonRetryableError,
    Retry,
    StepFailed,
    StepTypeMismatch,
)
from stepwell.v1 import workflows_pb2 as states
from stepwell.worker.host import Phase
from stepwell.worker.run import Run
from stepwell.worker.server_terms import Terms
from tests.sdk.stage import LATER, Stage, done, failed, pending, settle, slept, state, task_of, waiting


async def three_steps(event: Any, step: Any) -> Any:
    first = await step.do("a", lambda: 1)
    second = await step.do("b", lambda: first + 1)
    return await step.do("c", lambda: second + 1)


async def test_a_three_step_run_is_four_messages_each_body_after_the_result_before_it(stage: Stage) -> None:
    run = await stage.begin(three_steps)
    assert stage.kinds() == ["step_done:a +b"]

    await stage.ack(run, 1)
    assert stage.kinds() == ["step_done:b +c"]

    await stage.ack(run, 2)
    last = stage.take()
    assert [frame.WhichOneof("body") for frame in last] == ["step_done", "finish"]
    assert last[1].finish.output.json == "3"
    assert [frame.number for frame in last] == [3, 4]

    await stage.ack(run, 3, 4, released=True)
    assert stage.let_go_work == [run]


async def test_no_body_begins_before_the_result_it_follows_is_durable(stage: Stage) -> None:
    began: list[str] = []

    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: began.append("a"))
        await step.do("b", lambda: began.append("b"))

    run = await stage.begin(order)
    assert began == ["a"]

    await stage.ack(run, 1)
    assert began == ["a", "b"]


async def test_a_replay_calls_no_body_whose_result_is_known(stage: Stage) -> None:
    run = await stage.begin(three_steps, done("a", "10"), done("b", "20"))

    frames = stage.take()
    assert [frame.WhichOneof("body") for frame in frames] == ["step_done", "finish"]
    assert frames[0].step_done.name == "c"
    assert frames[1].finish.output.json == "21"
    assert run.phase is Phase.FINISHING


async def test_a_step_that_is_asked_for_again_gives_what_it_gave(stage: Stage) -> None:
    calls: list[int] = []

    async def order(event: Any, step: Any) -> list[Any]:
        return [await step.do("a", lambda: calls.append(1) or len(calls)) for _ in range(2)]

    await stage.begin(order)

    assert stage.take()[-1].finish.output.json == "[1,1]"


async def test_a_result_is_what_a_replay_would_see(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> str:
        return str(await step.do("a", lambda: {"pair": (1, 2)}))

    await stage.begin(order)

    assert stage.take()[-1].finish.output.json == '''"{'pair': [1, 2]}"'''


async def test_a_wait_travels_with_the_result_before_it_and_the_rest_after_it(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: 1)
        await step.sleep("nap", "2 seconds")

    await stage.begin(order)

    frames = stage.take()
    assert [frame.WhichOneof("body") for frame in frames] == ["step_done", "wait", "suspend"]
    assert frames[1].wait.sleep.seconds == 2
    assert frames[2].suspend.cached


async def test_parallel_bodies_begin_together_and_the_first_result_names_the_others(stage: Stage) -> None:
    gates = {name: asyncio.Event() for name in "ab"}

    async def body(name: str) -> str:
        await gates[name].wait()
        return name

    async def order(event: Any, step: Any) -> list[str]:
        a, b = step.do("a", lambda: body("a")), step.do("b", lambda: body("b"))
        return list(await asyncio.gather(a, b))

    run = await stage.begin(order)
    assert stage.kinds() == []

    gates["a"].set()
    await settle()
    assert stage.kinds() == ["step_done:a =b"]

    await stage.ack(run, 1)
    gates["b"].set()
    await settle()
    assert stage.kinds() == ["step_done:b", "finish"]


async def test_a_body_that_follows_one_branch_waits_for_every_result_sent_before_it(stage: Stage) -> None:
    began: list[str] = []

    async def branch(step: Any, first: str, second: str) -> None:
        await step.do(first, lambda: began.append(first))
        await step.do(second, lambda: began.append(second))

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(branch(step, "a", "b"), branch(step, "c", "d"))

    run = await stage.begin(order)
    assert stage.kinds() == ["step_done:a", "step_done:c +b +d"]

    await stage.ack(run, 1)
    assert began == ["a", "c"]
    await stage.ack(run, 2)
    assert began == ["a", "c", "b", "d"]


async def test_a_body_after_a_wake_is_announced_and_begins_after_its_ack(stage: Stage) -> None:
    began: list[str] = []

    async def order(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 hour")
        await step.do("a", lambda: began.append("a"))

    run = await stage.begin(order)
    assert stage.kinds() == ["wait:nap", "suspend"]
    await stage.ack(run, 1, 2, released=False)
    assert stage.kinds() == []  # the server has news and will send it

    await stage.resolve(run, slept("nap"))
    assert (stage.kinds(), began) == (["begin_steps +a"], [])
    await stage.ack(run, 3)
    assert began == ["a"]


async def test_the_first_bodies_under_a_new_lease_begin_at_once(stage: Stage) -> None:
    await stage.begin(three_steps, done("a", "1"))

    assert stage.kinds() == ["step_done:b +c"]


async def test_on_a_virtual_clock_every_body_is_announced_and_no_timer_runs(stage: Stage) -> None:
    stage.terms = Terms(virtual_clock=True)
    gate = asyncio.Event()

    async def order(event: Any, step: Any) -> None:
        await step.do("a", gate.wait)

    run = await stage.begin(order, interruptions=1)
    announced = stage.take()[0]
    assert announced.HasField("begin_steps")
    assert announced.opens[0].attempt == 2  # the interruption is charged to the first bodies

    await stage.ack(run, 1)
    assert stage.clock.open_timers() == 0
    run.drop()


async def test_a_wait_that_is_stored_is_not_sent_again(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 hour")

    await stage.begin(order, waiting("nap", states.STEP_TYPE_SLEEP))

    assert stage.kinds() == ["suspend"]


async def test_a_suspended_run_goes_on_from_memory(stage: Stage) -> None:
    replays: list[int] = []

    async def order(event: Any, step: Any) -> Any:
        replays.append(1)
        event = await step.wait_for_event("approval", type="approval", timeout="1 day")
        return [event.type, event.payload, event.timestamp.year]

    run = await stage.begin(order)
    await stage.ack(run, 1, 2, released=True, revision=7)
    assert (run.phase, stage.let_go_work) == (Phase.RELEASED, [run])
    for revision, remembered in ((7, run), (6, None)):
        known = task_of(cached=True, known_revision=revision)
        assert Run.for_task(stage, None, known, run) is remembered
    stage.take()

    arrived = done("approval", '{"ok":true}', event_type="approval", event_at=LATER)
    arrived.type = states.STEP_TYPE_WAIT_FOR_EVENT
    run.attach(1, 2, task_of(steps=[arrived], cached=True))
    await settle()

    (finish,) = stage.take()
    assert (finish.fence, finish.number, replays) == (2, 1, [1])
    assert finish.finish.output.json == '["approval",{"ok":true},2033]'


async def test_a_branch_goes_on_while_another_executes(stage: Stage) -> None:
    gate = asyncio.Event()

    async def nap(step: Any) -> None:
        await step.sleep("nap", "1 second")
        await step.do("after", lambda: None)

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(step.do("big", gate.wait), nap(step))

    run = await stage.begin(order)
    assert stage.kinds() == ["wait:nap =big"]  # no suspend: a body executes

    await stage.ack(run, 1, wake_at=LATER)
    await stage.resolve(run, slept("nap"))
    assert stage.kinds() == ["begin_steps +after"]
    run.drop()


async def test_two_open_steps_of_one_name_are_refused(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        with pytest.raises(DuplicateStepKey, match="DUPLICATE_STEP_KEY"):
            await asyncio.gather(step.do("a", lambda: 1), step.do("a", lambda: 2))

    await stage.begin(order)

    assert stage.kinds()[-1] == "finish"


async def test_a_name_has_one_type(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: 1)
        with pytest.raises(StepTypeMismatch):
            await step.sleep("a", "1 s")

    await stage.begin(order)

    assert stage.kinds() == ["step_done:a", "finish"]


async def test_steps_are_counted_as_the_server_counts_them(stage: Stage) -> None:
    stage.terms = Terms(max_steps=2)

    async def order(event: Any, step: Any) -> None:
        for name in ("a", "b", "a"):
            await step.do(name, lambda: 1)
        await step.sleep("nap", 0)
        with pytest.raises(MaxStepsExceeded):
            await step.do("c", lambda: 1)
        return None

    await stage.begin(order, done("a"), done("b"), slept("nap"))

    finish = stage.take()[-1].finish
    assert not finish.HasField("failure")


async def test_a_function_that_raises_ends_at_once_and_cancels_what_executes(stage: Stage) -> None:
    cancelled: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("forever")

    async def order(event: Any, step: Any) -> None:
        task = asyncio.create_task(step.do("forever", forever))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise LookupError(f"gone {task.done()}")

    await stage.begin(order)

    (finish,) = stage.take()
    assert (finish.finish.failure.name, finish.finish.failure.message) == ("LookupError", "gone False")
    assert cancelled == ["forever"]


class Odd(BaseException):
    """What no `except Exception` catches."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(1), Odd("odd"), Speechless(), asyncio.CancelledError()])
async def test_a_function_may_raise_whatever_it_likes(stage: Stage, error: BaseException) -> None:
    async def order(event: Any, step: Any) -> None:
        raise error

    await stage.begin(order)

    assert stage.take()[0].finish.failure.name == type(error).__name__


async def test_a_failed_step_and_a_failed_function_say_where(stage: Stage) -> None:
    def body() -> None:
        raise NonRetryableError("no stock")

    async def order(event: Any, step: Any) -> None:
        await step.do("a", body)

    run = await stage.begin(order)
    (failed,) = stage.take()
    assert "in body" in failed.step_failed.failure.details
    await stage.ack(run, 1)
    (finish,) = stage.take()
    assert "in order" in finish.finish.failure.details


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "\ud800", 5])
async def test_a_name_that_the_wire_cannot_carry_is_refused_where_it_is_used(stage: Stage, name: Any) -> None:
    async def order(event: Any, step: Any) -> None:
        with pytest.raises(InvalidStepName):
            await step.do(name, lambda: 1)

    await stage.begin(order)

    assert stage.kinds() == ["finish"]


async def test_a_run_that_is_over_does_not_wait_for_the_garbage_collector(stage: Stage) -> None:
    gc.disable()
    try:
        run = await stage.begin(three_steps)
        await stage.ack(run, 1)
        await stage.ack(run, 2)
        await stage.ack(run, 3, 4, released=True)
        over = weakref.ref(run)
        stage.let_go_work.clear()
        del run
        assert over() is None
    finally:
        gc.enable()


async def test_a_body_that_nobody_awaits_is_saved_before_the_end(stage: Stage) -> None:
    gate = asyncio.Event()

    async def order(event: Any, step: Any) -> str:
        order.task = asyncio.create_task(step.do("late", gate.wait))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return "done"

    await stage.begin(order)
    assert stage.kinds() == []

    gate.set()
    await settle()
    assert stage.kinds() == ["step_done:late", "finish"]


async def test_an_output_that_cannot_be_stored_fails_the_run(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> Any:
        return float("nan")

    await stage.begin(order)

    assert stage.take()[0].finish.failure.name == "PAYLOAD_NOT_JSON"


async def test_unacknowledged_frames_are_kept_in_order(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: 1)
        await step.sleep("nap", "1 s")

    run = await stage.begin(order)
    sent = stage.take()
    await stage.ack(run, 1)

    assert list(run.unacked_frames()) == sent[1:]


async def test_a_known_failure_is_raised_without_executing(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> str:
        try:
            await step.do("pay", lambda: 1)
        except StepFailed as error:
            return f"{error.name}: {error.message}"
        return "paid"

    await stage.begin(order, failed("pay", "PaymentDeclined", "no money"))

    assert stage.take()[0].finish.output.json == '"PaymentDeclined: no money"'


async def test_parameters_that_were_left_out_are_the_empty_object(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> Any:
        return [event.payload, event.instance_id, event.run_number]

    await stage.begin(order, run_number=3)

    assert stage.take()[0].finish.output.json == '[{},"order-1",3]'


async def test_the_decorator_executes_when_it_is_called(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> Any:
        @step.do("finish", retries=Retry(limit=5, delay="10 seconds", backoff="exponential"), timeout="10 minutes")
        async def finish(number: int) -> int:
            return number + 1

        return await finish(1)

    await stage.begin(order)

    frames = stage.take()
    assert frames[1].finish.output.json == "2"
    policy = frames[0].step_done.policy
    assert (policy.retry.max_attempts, policy.retry.delay.seconds, policy.timeout.seconds) == (6, 10, 600)


@pytest.mark.parametrize("config_first", [True, False])
async def test_a_config_may_be_a_dict_on_either_side(stage: Stage, config_first: bool) -> None:
    config = {"retries": {"limit": 0}, "timeout": 1000}

    async def order(event: Any, step: Any) -> Any:
        args = (config, lambda: 1) if config_first else (lambda: 1, config)
        return await step.do("a", *args)

    await stage.begin(order)

    assert stage.take()[0].step_done.policy.retry.max_attempts == 1


async def test_a_non_retryable_error_ends_the_step_under_its_own_name(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        def pay() -> None:
            raise NonRetryableError("no money", "Declined")

        await step.do("pay", pay)

    run = await stage.begin(order)
    failure = stage.take()[0].step_failed.failure
    assert (failure.name, failure.message, failure.non_retryable) == ("Declined", "no money", True)

    await stage.ack(run, 1)
    assert stage.take()[0].finish.failure.name == "Declined"


async def test_a_step_in_the_state_pending_is_executed_as_the_next_attempt(stage: Stage) -> None:
    await stage.begin(three_steps, pending("a", attempts=2))

    assert stage.take()[0].step_done.attempt == 3


async def test_a_step_in_a_status_of_a_newer_server_is_not_executed(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("a", lambda: pytest.fail("executed"))

    await stage.begin(order, state("a", 99))
    assert stage.kinds() == ["suspend"]
