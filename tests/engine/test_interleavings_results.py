"""Interleavings of results, each forced: what comes too late, and what is refused after the function went on."""

from __future__ import annotations

import pytest

from stepwell_server.domain.spine.tasks import Verdict
from stepwell_server.domain.values.errors import InvalidField, LeaseLost, MaxStepsExceeded, StepTypeMismatch
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import MINUTE
from stepwell_server.domain.workflows.frames import StepDone, StepFailed
from stepwell_server.domain.workflows.instances import InstanceStatus, StepStatus
from tests.support.replicas.runs import (
    BEGIN,
    BEN,
    FINISH,
    Engine,
    done,
    expects,
    failed,
    opens,
    sleeps,
)


@pytest.mark.parametrize("late", [done("slow", 1, '"late"'), failed("slow", 1)], ids=["result", "failure"])
async def test_what_rests_on_an_execution_that_timed_out_is_not_applied(
    engine: Engine, late: StepDone | StepFailed
) -> None:
    """Rule 22: the function has gone on with it, perhaps to its end. The run is replayed from what is stored."""
    mine = await engine.begin()
    await engine.say(mine, (BEGIN, opens("slow")))
    await engine.advance(10 * MINUTE)
    await engine.say(mine)

    news = await engine.say(mine, late, FINISH)

    assert isinstance(news.stale, LeaseLost)
    assert (await engine.get()).status is InstanceStatus.QUEUED
    assert (await engine.steps())["slow"].status is StepStatus.WAITING
    again = await engine.claim_one(BEN)
    assert (again.task.interruptions, (await engine.steps())["slow"].attempts) == (0, 1)


async def test_a_result_of_an_execution_that_timed_out_does_not_count(engine: Engine) -> None:
    """Rule 22: the run did not suspend, so its fence is the same; the attempt tells."""
    mine = await engine.begin()
    await engine.say(mine, (BEGIN, opens("slow")))
    await engine.advance(10 * MINUTE)
    await engine.say(mine)
    await engine.advance(MINUTE)
    await engine.say(mine, (BEGIN, opens("slow", 2)))

    late = await engine.say(mine, done("slow", 1, '"later"'))

    assert (late.answers[0].verdict, late.answers[0].refusal) == (Verdict.ACCEPTED, None)
    step = (await engine.steps())["slow"]
    assert (step.status.final, step.attempts, step.result) == (False, 1, None)
    assert '"slow",2' in (await engine.live()).open_steps  # the second still executes, and has its deadline
    await engine.say(mine, done("slow", 2, '"in time"'))
    assert (await engine.steps())["slow"].result is not None


async def test_a_second_result_of_a_step_does_not_replace_the_first(engine: Engine) -> None:
    """Rule 22: what the function has seen stays true."""
    mine = await engine.begin()
    await engine.say(mine, done("a", 1, '"first"'))
    await engine.say(mine, done("a", 1, '"second"'), failed("a", 2), (BEGIN, opens("a", 2)))

    step = (await engine.steps())["a"]
    assert (step.status, step.attempts) == (StepStatus.COMPLETED, 1)
    assert step.result is not None and step.result.json == '"first"'
    assert (await engine.live()).open_steps == ""


async def test_what_is_refused_uses_its_number_up_and_the_run_goes_on(engine: Engine) -> None:
    """Rule 22: the refusal comes back for that frame; those after it in the batch count."""
    mine = await engine.begin()
    await engine.say(mine, sleeps("nap"))

    news = await engine.say(mine, done("nap"), expects("nap"), (BEGIN, opens("nap")), done("fine"))

    assert [type(answer.refusal) for answer in news.answers] == [StepTypeMismatch] * 3 + [type(None)]
    assert set(await engine.steps()) == {"nap", "fine"}
    assert (await engine.live()).frame_number == 5


async def test_more_executions_than_the_policy_allows_are_refused(engine: Engine) -> None:
    """Rule 22 and the strict ceiling: whatever a worker believes."""
    twice = StepPolicy(RetryPolicy(max_attempts=2))
    mine = await engine.begin()

    news = await engine.say(
        mine, done("a", 3, policy=twice), failed("b", 3, twice), (BEGIN, opens("c", 3, policy=twice)), done("d", 2)
    )

    assert [type(answer.refusal) for answer in news.answers] == [InvalidField] * 3 + [type(None)]
    assert set(await engine.steps()) == {"d"}


async def test_the_first_step_too_many_is_refused(engine: Engine) -> None:
    """Rule 22: the limit counts bodies and event waits, and sleeps do not count."""
    mine = await engine.begin()
    for first in range(0, 1023, 93):
        await engine.say(mine, *(done(f"s{number}") for number in range(first, first + 93)))

    news = await engine.say(mine, expects("last"), sleeps("free"), done("too many"), expects("too many"))

    assert [type(answer.refusal) for answer in news.answers] == [type(None)] * 2 + [MaxStepsExceeded] * 2
    assert len(await engine.steps()) == 1025


async def test_nothing_of_a_frame_that_is_refused_is_stored(engine: Engine) -> None:
    """Neither its result nor what would have begun after it."""
    mine = await engine.begin()
    await engine.say(mine, sleeps("nap"))
    before = await engine.live()

    news = await engine.say(mine, (done("nap"), opens("next")))

    assert isinstance(news.answers[0].refusal, StepTypeMismatch)
    after = await engine.live()
    assert after == before._replace(frame_number=2, locked_until=after.locked_until)
