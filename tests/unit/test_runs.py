"""A run: what frames, timers and events make of its steps, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.namespaces import NamespaceLimits
from stepwell_server.domain.spine.executions import OpenStep, dump_open, load_open
from stepwell_server.domain.spine.frames import Body, Frame, FrameAnswer, Opening
from stepwell_server.domain.spine.frames import Rejected as RejectedFrame
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import InvalidField, MaxStepsExceeded, PendingEventsLimit, StepTypeMismatch
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import Backoff, RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import HOUR, MINUTE, SECOND
from stepwell_server.domain.workflows.frames import BeginSteps, Finish, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.workflows.instances import StepStatus, StepType
from stepwell_server.domain.workflows.runs import Run

NOW = 1_000 * HOUR
TWICE = StepPolicy(RetryPolicy(max_attempts=2, delay=10 * SECOND), MINUTE)
RULES = Rules(timeout_margin=30 * SECOND)
SESSION = "a" * 32


def held(**changes: Any) -> Run:
    """A run that a worker holds, with nothing in it."""
    task = Task(
        id=1,
        handler=Handler("default", TaskKind.WORKFLOW, "order"),
        key="x",
        run_number=0,
        reason=Reason.RUN,
        priority=5,
        run_at=NOW,
        status=TaskStatus.PROCESSING,
        fence=7,
        revision=2,
        frame_number=0,
        stop=Stop.NONE,
        wake_again=False,
        interruptions=0,
        acked=True,
        open_steps="",
        owner=Owner(SESSION, 1),
        locked_until=NOW,
        payload=None,
    )
    return Run(task._replace(**changes), NOW, NOW, RULES)


def take(run: Run, body: Body, *opens: Opening) -> FrameAnswer:
    """Apply the next frame."""
    return run.apply(Frame(run.task.frame_number + 1, body, opens), SESSION)


def done(name: str, attempt: int = 1) -> StepDone:
    return StepDone(name, attempt, TWICE, Payload("1"))


def failed(name: str, attempt: int = 1, *, final: bool = False) -> StepFailed:
    return StepFailed(name, attempt, TWICE, Failure("Boom", "it broke", final))


def nap(name: str = "nap", duration: int = HOUR) -> Wait:
    return Wait(name, StepType.SLEEP, duration)


def approval(name: str = "approval", timeout: int = HOUR) -> Wait:
    return Wait(name, StepType.WAIT_FOR_EVENT, timeout, event_type="go")


def later(run: Run, by: int) -> Run:
    """The same run in a later transaction."""
    return Run(run.task, run.now + by, run.lease_now, run.rules, dict(run.steps), list(run.events))


# ---- results


def test_a_result_is_stored_as_of_the_revision_of_its_frame() -> None:
    run = held()
    answer = take(run, done("a"))

    step = run.changed["a"]
    assert (step.status, step.attempts, step.result) == (StepStatus.COMPLETED, 1, Payload("1"))
    assert step.position == step.revision == answer.revision == run.task.revision == 3
    assert (run.task.frame_number, run.task.step_count) == (1, 1)


def test_a_failure_waits_for_its_next_execution_until_there_is_none() -> None:
    run = held()
    first = take(run, failed("a"))
    assert first.wake_at == NOW + 10 * SECOND == run.steps["a"].due_at
    assert run.steps["a"].status is StepStatus.WAITING

    run = later(run, 10 * SECOND)
    assert [step.status for step in run.resolve()] == [StepStatus.PENDING]
    last = take(run, failed("a", 2))

    assert last.wake_at is None
    assert (run.steps["a"].status, run.steps["a"].attempts) == (StepStatus.ERRORED, 2)
    assert run.steps["a"].next_retry_at is None


def test_a_failure_that_is_final_is_not_tried_again() -> None:
    run = held()
    assert take(run, failed("a", final=True)).wake_at is None
    assert run.steps["a"].status is StepStatus.ERRORED


def test_a_step_that_succeeds_after_a_failure_forgets_it() -> None:
    run = held()
    take(run, failed("a"))
    take(run, done("a", 2))

    step = run.steps["a"]
    assert (step.status, step.attempts, step.failure, step.next_retry_at) == (StepStatus.COMPLETED, 2, None, None)
    assert (step.position, step.revision) == (3, 4)


@pytest.mark.parametrize("late", [done("a", 1), failed("a", 1), done("a", 2), failed("a", 2)])
def test_nothing_changes_a_step_that_is_over(late: Body) -> None:
    run = held()
    take(run, done("a", 1))
    before = run.steps["a"]

    answer = take(run, late)

    assert answer.verdict is Verdict.ACCEPTED and answer.refusal is None
    assert run.steps["a"] == before


def test_a_result_counts_for_the_execution_that_is_open_and_closes_no_later_one() -> None:
    run = held()
    take(run, failed("a"))
    take(run, BeginSteps(), Opening("a", 2, TWICE))

    take(run, done("a", 1))
    assert run.steps["a"].result is None
    assert [(one.name, one.attempt) for one in run.open_steps] == [("a", 2)]

    take(run, done("a", 2))
    assert run.steps["a"].status is StepStatus.COMPLETED
    assert not run.open_steps


@pytest.mark.parametrize("body", [done("a", 3), failed("a", 3)])
def test_no_execution_beyond_the_maximum_is_believed(body: Body) -> None:
    run = held()
    answer = take(run, body)

    assert isinstance(answer.refusal, InvalidField) and run.changed == {}


def test_the_policy_of_a_step_is_the_one_it_began_with() -> None:
    run = held()
    take(run, failed("a"))
    generous = StepPolicy(RetryPolicy(max_attempts=100), HOUR)

    take(run, StepFailed("a", 2, generous, Failure("Boom", "again")))

    assert run.steps["a"].status is StepStatus.ERRORED
    assert run.steps["a"].policy == TWICE


# ---- refusals


@pytest.mark.parametrize(
    ("body", "opens"),
    [
        (done("nap"), ()),
        (failed("nap"), ()),
        (approval("nap"), ()),
        (nap("a"), ()),
        (BeginSteps(), (Opening("nap", 1, TWICE),)),
        (done("fine"), (Opening("nap", 1, TWICE),)),
    ],
)
def test_a_name_is_of_one_type(body: Body, opens: tuple[Opening, ...]) -> None:
    run = held()
    take(run, nap("nap"))
    take(run, done("a"))
    before, steps = run.task, dict(run.steps)

    answer = take(run, body, *opens)

    assert isinstance(answer.refusal, StepTypeMismatch)
    assert run.task == before._replace(frame_number=3) and run.steps == steps


def test_a_frame_that_could_not_be_read_uses_its_number_up() -> None:
    run = held()
    why = InvalidField("no", field="x")
    answer = take(run, RejectedFrame(why))

    assert answer.refusal is why
    assert (run.task.frame_number, run.task.revision) == (1, 2)


def test_a_run_has_only_so_many_steps_and_sleeps_are_free() -> None:
    run = held()
    run.rules = Rules(Limits(steps_per_run=2))
    assert take(run, done("a")).refusal is None
    assert take(run, nap("free")).refusal is None
    assert take(run, approval()).refusal is None

    for body in (done("b"), failed("c"), approval("d")):
        assert isinstance(take(run, body).refusal, MaxStepsExceeded)
    assert take(run, nap("also free")).refusal is None
    assert take(run, done("a")).refusal is None
    assert run.task.step_count == 2


def test_a_namespace_lowers_the_limits() -> None:
    low = NamespaceLimits(max_payload_bytes=1, max_steps_per_run=1, max_pending_events=1)
    run = held()
    run.rules = Rules(namespaces={"default": low, "other": low})
    take(run, done("a"))
    run.receive("go", None)

    assert isinstance(take(run, done("b")).refusal, MaxStepsExceeded)
    with pytest.raises(PendingEventsLimit):
        run.receive("go", None)
    assert run.task.pending_events == 1


def test_a_suspend_without_anything_to_wait_for_is_refused() -> None:
    run = held()
    assert isinstance(take(run, Suspend()).refusal, InvalidField)
    assert run.task.status is TaskStatus.PROCESSING


# ---- waits


def test_a_wait_keeps_the_time_that_it_got_first() -> None:
    run = held()
    first = take(run, nap())
    again = later(run, HOUR // 2)

    assert take(again, nap(duration=5 * HOUR)).wake_at == first.wake_at == NOW + HOUR
    assert again.steps["nap"].wake_at == NOW + HOUR


def test_a_sleep_until_the_past_is_over_at_once() -> None:
    run = held()
    take(run, Wait("nap", StepType.SLEEP, until=NOW - HOUR))
    take(run, Suspend())

    assert run.task.status is TaskStatus.PROCESSING
    assert [(step.name, step.status) for step in run.resolve()] == [("nap", StepStatus.COMPLETED)]


@pytest.mark.parametrize("cached", [True, False])
def test_a_suspend_sleeps_until_the_first_wait_is_over(cached: bool) -> None:
    run = held()
    take(run, nap(duration=2 * HOUR))
    take(run, failed("flaky"))
    answer = take(run, Suspend(cached))

    task = run.task
    assert answer.released and answer.revision == task.revision
    assert (task.status, task.run_at, task.reason) == (TaskStatus.PENDING, NOW + 10 * SECOND, Reason.RETRY)
    assert (task.owner, task.locked_until) == (None, None)
    assert task.sticky_session == (SESSION if cached else None)
    assert not cached or task.cached_revision == answer.revision


def test_a_suspend_is_not_put_off_by_what_does_not_concern_it() -> None:
    run = held(wake_again=True)
    take(run, approval())
    run.receive("other", None)

    assert take(run, Suspend()).released
    assert run.task.run_at == NOW + HOUR and not run.task.wake_again


def test_a_suspend_that_crosses_news_on_its_way_does_not_release() -> None:
    run = held()
    take(run, nap())
    take(run, nap("long", 10 * HOUR))
    known = run.task.revision
    run = later(run, HOUR)
    assert len(run.resolve()) == 1

    assert not take(run, Suspend(known_revision=known)).released
    assert take(run, Suspend(known_revision=run.task.resolved_revision)).released


@pytest.mark.parametrize(("at", "gets_it"), [(-1, True), (0, True), (1, False)])
def test_an_event_counts_up_to_the_deadline_of_its_wait(at: int, gets_it: bool) -> None:
    run = held()
    take(run, approval())
    event = later(run, HOUR + at).receive("go", Payload("1"))
    run = later(run, 9 * HOUR)
    run.events = [event]
    run.task = run.task._replace(pending_events=1)

    (step,) = run.resolve()

    assert step.status is (StepStatus.COMPLETED if gets_it else StepStatus.ERRORED)
    assert [one.consumed_by_step for one in run.delivered] == ["approval"] * gets_it
    assert run.task.pending_events == 1 - gets_it


@given(st.lists(st.sampled_from(["go", "other"]), max_size=6), st.integers(0, 4), st.booleans())
def test_each_event_is_given_to_one_wait_the_oldest_to_the_oldest(types: list[str], waits: int, first: bool) -> None:
    run = held()
    if first:
        for number in range(waits):
            take(run, approval(f"w{number}"))
    for number, event_type in enumerate(types):
        run.receive(event_type, Payload(str(number)))
    if not first:
        for number in range(waits):
            take(run, approval(f"w{number}"))
    run.resolve()

    wanted = [str(number) for number, event_type in enumerate(types) if event_type == "go"][:waits]
    given = [step.result.json for step in run.steps.values() if step.result is not None]
    assert given == wanted
    assert [one.payload.json for one in run.delivered if one.payload] == wanted
    assert run.task.pending_events == len(types) - len(wanted)


@pytest.mark.parametrize(("status", "wakes"), [(TaskStatus.PENDING, True), (TaskStatus.PARKED, False)])
def test_an_event_wakes_a_run_that_waits_for_it_unless_it_is_paused(status: TaskStatus, wakes: bool) -> None:
    run = held()
    take(run, approval())
    run.task = run.task._replace(status=status, run_at=NOW + HOUR)

    run.receive("other", None)
    assert run.task.run_at == NOW + HOUR
    run.receive("go", None)
    assert (run.task.run_at == NOW) is wakes


def test_an_event_that_is_too_late_wakes_nobody() -> None:
    run = held()
    take(run, approval())
    late = later(run, HOUR + 1)
    late.receive("go", None)

    assert not late.task.wake_again


# ---- pauses and ends


def test_a_run_that_is_to_pause_stops_when_nothing_executes() -> None:
    run = held(stop=Stop.PAUSE, open_steps=dump_open([OpenStep("a", 1, NOW + HOUR, TWICE)]))

    still = take(run, done("b"), Opening("c", 1, TWICE), Opening("d", 1, TWICE, begun=True))
    assert (still.stop, still.released) == (Stop.PAUSE, False)
    assert [one.name for one in run.open_steps] == ["a", "d"]
    take(run, done("d"))
    last = take(run, done("a"))

    assert (last.stop, last.released) == (Stop.PAUSE, True)
    assert (run.task.status, run.task.stop) == (TaskStatus.PARKED, Stop.NONE)


@pytest.mark.parametrize("body", [Finish(Payload("1")), Suspend()])
def test_a_run_that_is_to_pause_neither_ends_nor_suspends(body: Body) -> None:
    run = held(stop=Stop.PAUSE)
    take(run, nap())  # which pauses it
    run.task = run.task._replace(status=TaskStatus.PROCESSING, stop=Stop.PAUSE)

    assert take(run, body).released
    assert run.ending is None and run.task.status is TaskStatus.PARKED


def test_an_end_says_how() -> None:
    run = held()
    take(run, Finish(failure=Failure("E" * 999, "m" * 9999)))

    assert run.ending is not None and run.ending.fence == 7
    assert run.ending.failure is not None and len(run.ending.failure.message) == 4096


# ---- executions that are lost, or hang


def test_lost_executions_are_charged_and_others_are_not() -> None:
    opened = [OpenStep("a", 1, NOW + HOUR, TWICE), OpenStep("b", 2, NOW + HOUR, TWICE)]
    run = held(status=TaskStatus.PENDING)
    run.task = run.task._replace(status=TaskStatus.PROCESSING)
    take(run, failed("b"))
    take(run, done("c"))
    run.task = run.task._replace(open_steps=dump_open(opened))

    run.charge()

    found = {name: (step.status, step.attempts) for name, step in run.steps.items()}
    assert found == {
        "a": (StepStatus.PENDING, 1), "b": (StepStatus.ERRORED, 2), "c": (StepStatus.COMPLETED, 1),
    }  # fmt: skip
    assert run.steps["b"].failure is not None and run.steps["b"].failure.message == "STEP_MAX_ATTEMPTS_EXCEEDED"
    assert run.task.open_steps == "" and run.task.step_count == 3


def test_a_claim_after_a_loss_does_not_trust_what_a_worker_remembers() -> None:
    suspended = held(
        status=TaskStatus.PENDING, sticky_session=SESSION, cached_revision=2, owner=None, locked_until=None
    )
    suspended.claim(Owner(SESSION, 1), 8)
    assert suspended.task.cached_revision == 2

    lost = held(status=TaskStatus.PENDING, sticky_session=SESSION, cached_revision=2, open_steps=dump_open([]))
    lost.task = lost.task._replace(open_steps=dump_open([OpenStep("a", 1, NOW, TWICE)]))
    lost.claim(Owner(SESSION, 1), 8)
    assert lost.task.cached_revision == 0


def test_an_execution_that_takes_too_long_is_failed_once() -> None:
    run = held()
    take(run, BeginSteps(), Opening("a", 1, TWICE), Opening("b", 1, StepPolicy(timeout=HOUR)))
    assert run.next_timer() == NOW + 90 * SECOND  # a minute, and half of one for the worker to do it itself

    run = later(run, 90 * SECOND - 1)
    assert run.expire() == []
    run = later(run, 1)
    assert run.expire() == ["a"] and run.expire() == []

    step = run.steps["a"]
    assert (step.status, step.attempts) == (StepStatus.WAITING, 1)
    assert step.failure is not None and step.failure.name == "StepTimeoutError"
    assert [one.name for one in run.open_steps] == ["b"]


names = st.text(min_size=1, max_size=256)
policies = st.builds(
    StepPolicy,
    st.builds(
        RetryPolicy,
        st.none() | st.integers(1, 2**31),
        st.integers(0, 2**53),
        st.sampled_from(Backoff),
        st.none() | st.integers(0, 2**53),
    ),
    st.integers(0, 2**53),
)


@given(st.lists(st.builds(OpenStep, names, st.integers(1, 2**31), st.integers(0, 2**53), policies)))
def test_open_executions_come_back_from_their_row(opened: list[OpenStep]) -> None:
    assert list(load_open(dump_open(opened))) == opened
