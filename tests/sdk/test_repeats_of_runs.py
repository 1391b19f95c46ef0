"""What the server says again after a reconnect, and what crosses other frames on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Retry
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.v1.common_pb2 import Failure
from stepwell.worker.host import Phase
from stepwell.worker.run import Run
from tests.sdk.stage import LATER, Stage, pending, settle, slept, state, waiting


class Body:
    """Fails the first time and then does not end until it is let go."""

    def __init__(self, failures: int = 1) -> None:
        self.calls = 0
        self.failures = failures
        self.gate = asyncio.Event()

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("down")
        await self.gate.wait()
        return "ok"


async def retried(stage: Stage, body: Body) -> Run:
    """A run whose step has failed once, is due again, and executes for the second time."""

    async def order(event: Any, step: Any) -> Any:
        return await step.do("a", body)

    run = await stage.begin(order)
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    await stage.resolve(run, pending("a", attempts=1))
    await stage.ack(run, 3)
    stage.take()
    assert body.calls == 2
    return run


def exhausted(name: str, attempts: int) -> pb.StepState:
    return state(name, states.STEP_STATUS_ERRORED, attempts=attempts, failure=Failure(name="StepTimeoutError"))


async def test_a_retry_that_executes_already_is_not_begun_again(stage: Stage) -> None:
    body = Body()
    run = await retried(stage, body)

    await stage.resolve(run, pending("a", attempts=1))
    assert (body.calls, stage.kinds()) == (2, [])

    body.gate.set()
    await settle()
    assert stage.kinds() == ["step_done:a", "finish"]


async def test_a_result_that_is_on_its_way_is_newer_than_what_the_server_repeats(stage: Stage) -> None:
    body = Body()
    run = await retried(stage, body)
    body.gate.set()
    await settle()
    assert stage.kinds() == ["step_done:a", "finish"]

    await stage.resolve(run, pending("a", attempts=1))

    assert (stage.start_overs, stage.kinds(), run.phase) == ([], [], Phase.FINISHING)


@pytest.mark.parametrize("repeat", [pending("a", attempts=1), waiting("a", attempts=1)])
async def test_so_is_a_failure_that_is_on_its_way(stage: Stage, repeat: pb.StepState) -> None:
    body = Body(failures=2)
    run = await retried(stage, body)
    assert next(run.unacked_frames()).step_failed.attempt == 2

    await stage.resolve(run, repeat)
    assert (body.calls, stage.kinds()) == (2, [])

    await stage.ack(run, 4, wake_at=LATER)
    assert stage.kinds() == ["suspend"]


async def test_waits_that_are_over_are_over_once(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 hour")
        await step.sleep("second nap", "1 hour")

    run = await stage.begin(order)
    await stage.ack(run, 1, 2, released=False)
    await stage.resolve(run, slept("nap"))
    assert stage.kinds() == ["wait:nap", "suspend", "wait:second nap", "suspend"]

    await stage.resolve(run, slept("nap"))

    assert (stage.kinds(), run.phase) == ([], Phase.SUSPENDING)


async def test_failures_that_the_function_has_seen_are_no_news(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        with pytest.raises(ConnectionError):
            await step.do("a", Body(), retries=Retry(limit=0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await step.wait_for_event("approval", type="approval")
        await step.sleep("nap", "1 hour")

    run = await stage.begin(order)
    await stage.ack(run, 1)
    expected = stage.kinds()
    await stage.resolve(
        run, state("a", states.STEP_STATUS_ERRORED, attempts=1, failure=Failure(name="ConnectionError"))
    )

    assert expected == ["step_failed:a", "wait:approval", "wait:nap", "suspend"]
    assert (stage.kinds(), stage.start_overs) == ([], [])


async def test_a_wait_that_nobody_asked_for_yet_is_kept_for_later(stage: Stage) -> None:
    gate = asyncio.Event()

    async def order(event: Any, step: Any) -> None:
        await step.do("a", gate.wait)
        await step.sleep("nap", "1 hour")

    run = await stage.begin(order)
    await stage.resolve(run, slept("nap"))
    gate.set()
    await settle()

    assert stage.kinds() == ["step_done:a", "finish"]


async def test_a_retry_that_came_due_while_its_failure_was_not_acknowledged(stage: Stage) -> None:
    body = Body()

    async def order(event: Any, step: Any) -> Any:
        return await step.do("a", body)

    run = await stage.begin(order)
    assert stage.kinds() == ["step_failed:a"]

    await stage.resolve(run, pending("a", attempts=1))  # the Ack was lost with its stream
    assert stage.kinds() == ["begin_steps +a"]
    await stage.ack(run, 1)  # without a time: by now it has none
    await stage.ack(run, 2)
    assert body.calls == 2

    body.gate.set()
    await settle()
    done, finish = stage.take()
    assert (done.step_done.attempt, finish.finish.output.json) == (2, '"ok"')


async def test_an_execution_that_timed_out_and_is_due_again_is_stopped_and_begun_again(stage: Stage) -> None:
    body = Body()
    run = await retried(stage, body)

    await stage.resolve(run, pending("a", attempts=2))  # Cancel and "waiting" were lost with their stream
    assert [(step.name, step.attempt) for step in stage.take()[0].opens] == [("a", 3)]

    await stage.ack(run, 4)
    body.gate.set()
    await settle()
    assert (body.calls, stage.take()[0].step_done.attempt) == (3, 3)


@pytest.mark.parametrize("decided", [waiting("a", attempts=2), pending("a", attempts=2), exhausted("a", 2)])
async def test_a_result_that_the_server_did_not_take_starts_the_run_over(stage: Stage, decided: pb.StepState) -> None:
    body = Body()
    run = await retried(stage, body)
    body.gate.set()
    await settle()

    await stage.resolve(run, decided)

    assert stage.start_overs == [run]


async def test_a_suspend_that_crosses_what_it_was_to_wait_for_is_not_the_end(stage: Stage) -> None:
    gate = asyncio.Event()

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(step.do("work", gate.wait), step.sleep("nap", "1 second"))
        await step.do("after", lambda: 1)

    run = await stage.begin(order)
    await stage.ack(run, 1, wake_at=LATER)
    gate.set()
    await settle()
    assert stage.kinds() == ["wait:nap =work", "step_done:work", "suspend"]

    await stage.resolve(run, slept("nap"))  # said before the server had heard of the two
    await stage.ack(run, 2)
    run.refused(3, "INVALID_FIELD", "nothing of the run waits")
    await settle()
    assert stage.kinds() == ["begin_steps +after"]


async def test_a_suspend_says_what_was_heard_of_so_that_the_server_sees_what_crosses_it(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 second")
        await step.sleep("second nap", "1 second")

    run = await stage.begin(order, revision=3)
    assert stage.take()[-1].suspend.known_revision == 3
    await stage.ack(run, 1, revision=4)
    await stage.resolve(run, slept("nap"), revision=5)  # crosses the Suspend
    await stage.ack(run, 2, released=False, revision=6)

    wait, suspend = stage.take()
    assert (wait.wait.name, suspend.suspend.known_revision) == ("second nap", 5), "an Ack tells of nothing else"


async def test_a_suspend_that_is_refused_for_no_reason_that_is_known_ends_the_run(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 second")

    run = await stage.begin(order)
    await stage.ack(run, 1, wake_at=LATER)
    run.refused(2, "INVALID_FIELD", "no")
    await settle()

    assert stage.take()[-1].finish.failure.name == "INVALID_FIELD"
