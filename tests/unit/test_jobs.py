"""A job: what claims, outcomes, losses and time make of its executions, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Frame, Outcome, Rejected
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import JOB_PRIORITY, Job, JobStatus
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import InvalidField, LeaseLost
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import HOUR, MINUTE, SECOND, Micros
from stepwell_server.domain.workflows.frames import Suspend

NOW: Micros = 1_000 * HOUR
RULES = Rules(timeout_margin=30 * SECOND)
OWNER = Owner("a" * 32, 1)
TWICE = StepPolicy(RetryPolicy(max_attempts=2, delay=10 * SECOND), MINUTE)
BOOM = Failure("Boom", "it broke")
DONE = Outcome()
FAILED = Outcome(BOOM)


def waiting(**changes: Any) -> Task:
    """The task of a job that nobody holds, and that is due."""
    task = Task(
        id=1,
        handler=Handler("default", TaskKind.HOOK, "note"),
        key="h",
        run_number=0,
        reason=Reason.RUN,
        priority=JOB_PRIORITY,
        run_at=NOW,
        status=TaskStatus.PENDING,
        fence=0,
        revision=1,
        frame_number=0,
        stop=Stop.NONE,
        wake_again=False,
        interruptions=0,
        acked=False,
        open_steps="",
        owner=None,
        locked_until=None,
        payload=None,
    )
    return task._replace(**changes)


def opened(task: Task | None = None, now: Micros = NOW) -> Job:
    """A job as a transaction sees it."""
    return Job(task or waiting(), now, now, RULES)


def held(policy: StepPolicy = TWICE, *, attempts: int = 0, fence: int = 7) -> Job:
    """A job that a worker holds and has acknowledged, in a transaction of its own."""
    job = opened()
    assert job.claim(OWNER, fence, attempts, policy)
    return opened(job.task.renewed(OWNER, NOW, RULES.times))


# ---- an execution


def test_a_claim_begins_the_next_execution_and_says_when_it_must_end() -> None:
    job = opened()

    assert job.claim(OWNER, 7, 1, TWICE)

    (execution,) = load_open(job.task.open_steps)
    assert (execution.attempt, execution.policy) == (2, TWICE)
    assert execution.ends_at == job.news((), again=False).next_timer == NOW + TWICE.timeout + RULES.timeout_margin
    assert (job.task.status, job.task.fence, job.task.claimed_at) == (TaskStatus.PROCESSING, 7, NOW)


def test_one_that_returned_is_completed_under_the_lease_of_its_holder() -> None:
    job = held()

    answer = job.apply(Frame(1, DONE), OWNER.session_id)

    assert (answer.verdict, answer.released, answer.wake_at, answer.refusal) == (Verdict.ACCEPTED, True, None, None)
    assert job.ending is not None
    assert (job.ending.status, job.ending.attempts, job.ending.failure) == (JobStatus.COMPLETED, 1, None)
    assert (job.ending.began_at, job.ending.fence) == (NOW, 7)


def test_one_that_failed_waits_as_long_as_its_policy_says() -> None:
    job = held()

    answer = job.apply(Frame(1, FAILED), OWNER.session_id)

    assert (answer.released, answer.wake_at) == (True, NOW + 10 * SECOND)
    assert job.ending is None
    assert job.ended is not None
    assert (job.ended.status, job.ended.attempts, job.ended.failure) == (JobStatus.OPEN, 1, BOOM)
    task = job.task
    assert (task.status, task.reason, task.priority) == (TaskStatus.PENDING, Reason.RETRY, JOB_PRIORITY)
    assert (task.run_at, task.open_steps, task.owner) == (NOW + 10 * SECOND, "", None)


@pytest.mark.parametrize(("asked", "waits"), [(0, 10), (9 * SECOND, 10), (11 * SECOND, 11)])
def test_whoever_asked_to_be_left_alone_is_not_called_before_the_policy_says_either(asked: Micros, waits: int) -> None:
    job = held()

    job.apply(Frame(1, Outcome(BOOM, asked)), OWNER.session_id)

    assert job.task.run_at == NOW + waits * SECOND


@pytest.mark.parametrize(
    ("attempts", "failure"), [(1, BOOM), (0, Failure("Boom", "for good", non_retryable=True))], ids=["last", "final"]
)
def test_the_last_attempt_and_one_that_is_final_end_the_job(attempts: int, failure: Failure) -> None:
    job = held(attempts=attempts)

    answer = job.apply(Frame(1, Outcome(failure)), OWNER.session_id)

    assert (answer.released, answer.wake_at) == (True, None)
    assert job.ending is not None
    assert (job.ending.status, job.ending.attempts, job.ending.failure) == (JobStatus.FAILED, attempts + 1, failure)


def test_a_failure_is_kept_as_long_as_failures_may_be() -> None:
    job = held()

    job.apply(Frame(1, Outcome(Failure("Boom", "x" * 100_000))), OWNER.session_id)

    assert job.ended is not None
    assert job.ended.failure == Failure("Boom", "x" * 100_000).shortened()


def test_a_job_without_a_maximum_is_tried_for_ever() -> None:
    job = held(StepPolicy(RetryPolicy(max_attempts=None, delay=SECOND, max_delay=MINUTE), MINUTE), attempts=1_000_000)

    answer = job.apply(Frame(1, FAILED), OWNER.session_id)

    assert answer.wake_at == NOW + MINUTE


def test_a_frame_that_is_no_outcome_uses_its_number_up_and_nothing_else() -> None:
    refusal = InvalidField("it cannot be read", field="body")
    for body in (Suspend(), Rejected(refusal)):
        job = held()
        before = job.task

        answer = job.apply(Frame(1, body), OWNER.session_id)

        assert isinstance(answer.refusal, InvalidField)
        assert (answer.released, job.ended, job.task) == (False, None, before._replace(frame_number=1))


def test_an_outcome_that_is_repeated_is_answered_as_it_was() -> None:
    job = held()
    first = job.apply(Frame(1, FAILED), OWNER.session_id)

    again = opened(job.task, NOW + SECOND).repeat(Frame(1, FAILED))

    assert again.verdict is Verdict.REPEATED
    assert (again.released, again.wake_at, again.revision) == (True, first.wake_at, first.revision)


# ---- holders that are lost


def test_a_holder_that_is_lost_has_had_its_execution() -> None:
    job = opened(held().task.lapsed(NOW))

    assert job.claim(OWNER, 8, 0, TWICE)

    assert [one.attempt for one in load_open(job.task.open_steps)] == [2]


def test_a_task_that_never_arrived_is_no_execution() -> None:
    job = opened()
    job.claim(OWNER, 7, 0, TWICE)
    job = opened(job.task.lapsed(NOW))

    assert job.claim(OWNER, 8, 0, TWICE)

    assert [one.attempt for one in load_open(job.task.open_steps)] == [1]


def test_a_job_whose_holders_are_all_lost_fails_without_another_execution() -> None:
    job = opened(held(attempts=1).task.lapsed(NOW))

    assert not job.claim(OWNER, 8, 1, TWICE)

    assert job.ending is not None
    assert job.ending.failure is not None
    assert (job.ending.status, job.ending.attempts) == (JobStatus.FAILED, 2)
    assert (job.ending.failure.name, job.ending.failure.message) == (
        "JobMaxAttemptsExceeded",
        "JOB_MAX_ATTEMPTS_EXCEEDED",
    )
    assert job.ending.fence is None  # its holder has not said so, and must not be told that it has


# ---- time


def test_an_execution_has_all_its_time() -> None:
    job = held()
    job.now = NOW + TWICE.timeout + RULES.timeout_margin - 1

    news = job.news((), again=False)

    assert (job.ended, news.stale) == (None, None)


@pytest.mark.parametrize("attempts", [0, 1])
def test_an_execution_that_takes_too_long_has_failed_and_is_no_longer_held(attempts: int) -> None:
    job = held(attempts=attempts)
    job.now = NOW + TWICE.timeout + RULES.timeout_margin

    news = job.news((), again=False)

    assert isinstance(news.stale, LeaseLost)
    assert job.ended is not None
    assert job.ended.failure is not None
    assert (job.ended.attempts, job.ended.failure.message) == (attempts + 1, "JOB_TIMEOUT")
    assert job.ended.fence is None  # whatever its holder still says is stale
    assert (job.ending is not None) == (attempts == 1)


def test_what_nobody_can_execute_counts_as_executed_and_failed() -> None:
    job = opened()

    job.give_up(0, TWICE, BOOM)
    assert job.ended is not None
    assert (job.ending, job.ended.attempts, job.ended.began_at) == (None, 1, NOW)
    assert job.task.run_at == NOW + 10 * SECOND

    job = opened(job.task)
    job.give_up(1, TWICE, BOOM)
    assert job.ending is not None
    assert (job.ending.status, job.ending.attempts, job.ending.failure) == (JobStatus.FAILED, 2, BOOM)


# ---- whatever happens


@given(
    st.lists(st.sampled_from(["fails", "is lost", "never arrives", "hangs", "returns"]), max_size=12),
    st.integers(1, 5),
)
def test_executions_that_began_are_counted_one_by_one_and_never_exceed_the_maximum(fates: list[str], most: int) -> None:
    policy = StepPolicy(RetryPolicy(max_attempts=most, delay=SECOND), MINUTE)
    task, begun, stored, now = waiting(), 0, 0, NOW
    for fence, fate in enumerate(fates, start=1):
        job = opened(task, now)
        if not job.claim(OWNER, fence, stored, policy):
            assert begun == most
            return
        stored = job.ended.attempts if job.ended is not None else stored
        (execution,) = load_open(job.task.open_steps)
        assert execution.attempt == begun + 1 <= most
        begun += fate != "never arrives"
        job = opened(job.task if fate == "never arrives" else job.task.renewed(OWNER, now, RULES.times), now)
        match fate:
            case "fails" | "returns":
                job.apply(Frame(1, FAILED if fate == "fails" else DONE), OWNER.session_id)
            case "hangs":
                job.now = now = now + HOUR
                job.news((), again=False)
            case _:
                job.task = job.task.lapsed(now)
        if job.ended is not None:
            stored = job.ended.attempts
            assert stored == begun
        if job.ending is not None:
            assert (job.ending.status is JobStatus.COMPLETED) == (fate == "returns")
            assert fate == "returns" or begun == most
            return
        task = job.task
