"""Images: which runs have one, and which reports may be decided by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell_server.domain.spine.frames import Body, Frame, Opening
from stepwell_server.domain.spine.tasks import Stop, Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import RetryPolicy
from stepwell_server.domain.values.times import HOUR
from stepwell_server.domain.workflows.frames import BeginSteps, Finish, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.workflows.images import is_image, is_plain, steps_named
from stepwell_server.domain.workflows.instances import StepType
from stepwell_server.domain.workflows.runs import Run
from tests.unit.test_runs import SESSION, TWICE, held

DONE = StepDone("a", 1, TWICE, Payload("1"))
NAP = Wait("nap", StepType.SLEEP, HOUR)


def plainly(run: Run, *bodies: Body, opens: tuple[Opening, ...] = ()) -> bool:
    """Whether the run, which is its own image, takes these frames plainly."""
    before = run.task
    frames = [Frame(number, body, opens) for number, body in enumerate(bodies, before.frame_number + 1)]
    run.begin_batch(frames)
    return is_plain(run, before, frames, [run.apply(frame, SESSION) for frame in frames])


@pytest.mark.parametrize(
    "bodies", [(DONE,), (BeginSteps(),), (DONE, Finish(Payload("2"))), (Finish(failure=Failure("Boom", "it broke")),)]
)
def test_first_results_and_ends_are_plain(bodies: tuple[Body, ...]) -> None:
    assert plainly(held(), *bodies, opens=(Opening("b", 1, TWICE),))


@pytest.mark.parametrize(
    "bodies",
    [
        (StepFailed("a", 1, TWICE, Failure("Boom", "it broke")),),
        (replace(DONE, attempt=2),),
        (DONE, DONE),
        (NAP,),
        (NAP, Suspend()),
        (Suspend(),),
        (DONE, replace(DONE, name="b", attempt=3)),
    ],
)
def test_all_else_is_not(bodies: tuple[Body, ...]) -> None:
    assert not plainly(held(), *bodies)


def test_what_has_failed_before_is_not() -> None:
    assert not plainly(held(), DONE, opens=(Opening("b", 2, TWICE),))


def test_a_run_that_is_to_pause_is_not() -> None:
    assert not plainly(held(stop=Stop.PAUSE), DONE)


def test_an_execution_that_takes_too_long_is_not() -> None:
    run = held()
    before = run.task
    frame = Frame(before.frame_number + 1, BeginSteps(), (Opening("a", 1, replace(TWICE, timeout=-HOUR)),))
    answers = (run.apply(frame, SESSION),)
    run.news(answers, again=False)

    assert not is_plain(run, before, [frame], answers)


def test_an_image_is_of_a_run_that_waits_for_nothing() -> None:
    run = held()
    assert is_image(run)
    assert plainly(run, DONE)
    assert is_image(run)
    run.apply(Frame(run.task.frame_number + 1, NAP), SESSION)
    assert not is_image(run)


@pytest.mark.parametrize("changes", [{"stop": Stop.PAUSE}, {"wake_again": True}, {"status": TaskStatus.PENDING}])
def test_no_image_is_of_a_run_for_which_something_came(changes: dict[str, object]) -> None:
    assert not is_image(held(**changes))


def test_no_column_that_a_report_could_change_is_forgotten() -> None:
    """Whatever else a task will have: a change of it is not plain unless it is written."""
    written = {"frame_number", "revision", "open_steps", "step_count", "interruptions", "acked", "locked_until"}
    for name in set(Task._fields) - written:
        run = held()
        before = run.task
        run.task = before._replace(**{name: "another"})
        assert not is_plain(run, before, [], []), name


def test_the_steps_of_frames_are_those_reported_and_those_that_begin() -> None:
    opens = (Opening("b", 1, replace(TWICE, retry=RetryPolicy())),)
    assert steps_named([Frame(1, DONE, opens), Frame(2, BeginSteps(), opens), Frame(3, Finish())]) == {"a", "b"}
