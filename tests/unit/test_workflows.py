"""Instances: their names, their labels, where they stand; and the frames about them that cannot be."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stepwell_server.domain.spine.frames import Frame, Opening
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.errors import (
    DurationOutOfRange,
    InvalidEventType,
    InvalidField,
    InvalidInstanceId,
    InvalidStepName,
)
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import DAY, HOUR, SECOND
from stepwell_server.domain.workflows.frames import BeginSteps, StepDone, Wait
from stepwell_server.domain.workflows.instances import (
    PRIORITY,
    InstanceFilter,
    InstanceKey,
    InstanceStatus,
    NewEvent,
    NewInstance,
    StepType,
    check_event_type,
    check_instance_id,
    status_of,
    terminal,
)

YEAR = 365 * DAY


def task(**changes: object) -> Task:
    """A task of an instance that was just created."""
    handler = Handler("default", TaskKind.WORKFLOW, "order")
    new = Task(
        id=1, handler=handler, key="x", run_number=0, reason=Reason.RUN, priority=5, run_at=0,
        status=TaskStatus.PENDING, fence=0, revision=1, frame_number=0, stop=Stop.NONE, wake_again=False,
        interruptions=0, acked=False, open_steps="", owner=None, locked_until=None, payload=None,
    )  # fmt: skip
    return new._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "stop", "reason", "expected"),
    [
        (TaskStatus.PENDING, Stop.NONE, Reason.RUN, InstanceStatus.QUEUED),
        (TaskStatus.PENDING, Stop.NONE, Reason.RESUME, InstanceStatus.QUEUED),
        (TaskStatus.PENDING, Stop.NONE, Reason.TAKEOVER, InstanceStatus.QUEUED),
        (TaskStatus.PENDING, Stop.NONE, Reason.WAKE, InstanceStatus.WAITING),
        (TaskStatus.PENDING, Stop.NONE, Reason.RETRY, InstanceStatus.WAITING),
        (TaskStatus.PROCESSING, Stop.NONE, Reason.WAKE, InstanceStatus.RUNNING),
        (TaskStatus.PROCESSING, Stop.PAUSE, Reason.RUN, InstanceStatus.WAITING_FOR_PAUSE),
        (TaskStatus.PARKED, Stop.NONE, Reason.WAKE, InstanceStatus.PAUSED),
    ],
)
def test_the_task_says_where_an_instance_stands(
    status: TaskStatus, stop: Stop, reason: Reason, expected: InstanceStatus
) -> None:
    assert status_of(task(status=status, stop=stop, reason=reason)) is expected


def test_every_change_of_status_has_a_revision() -> None:
    """Whatever a task goes through: where the instance stands somewhere else, the number is another."""
    claimed = task().claimed(Owner("a" * 32, 1), 7, 0, LeaseTimes())._replace(revision=2)
    for before in (claimed, claimed._replace(stop=Stop.PAUSE)):
        for after in (before.given_back(), before.lapsed(5), before.released(5, 9, Reason.WAKE, 1), before.seized(8)):
            assert status_of(before) is not status_of(after)
            assert after.revision > before.revision


def test_what_has_begun_comes_before_what_is_new() -> None:
    assert max(PRIORITY[one] for one in PRIORITY if one is not Reason.RUN) < PRIORITY[Reason.RUN]
    lost = task(status=TaskStatus.PROCESSING, owner=Owner("a" * 32, 1), acked=True).lapsed(5)
    assert lost.priority < PRIORITY[Reason.RUN]
    assert task(status=TaskStatus.PROCESSING, priority=1).lapsed(5).priority == 1


@pytest.mark.parametrize("good", ["x", "0", "_x", "A-b_9", "a" * 100])
def test_names_that_can_be(good: str) -> None:
    check_instance_id(good)
    check_event_type(good)


@pytest.mark.parametrize("bad", ["", "-x", "a b", "ä", "a/b", "a.b", "a" * 101, "x\n"])
def test_names_that_cannot_be(bad: str) -> None:
    with pytest.raises(InvalidInstanceId):
        check_instance_id(bad)
    with pytest.raises(InvalidEventType):
        check_event_type(bad)
    with pytest.raises(InvalidInstanceId):
        NewEvent(InstanceKey("default", "order", bad), "go", None).check()
    with pytest.raises(InvalidEventType):
        NewEvent(InstanceKey("default", "order", "x"), bad, None).check()


@pytest.mark.parametrize(
    ("labels", "good"),
    [
        ({}, True),
        ({"a": ""}, True),
        ({"k" * 100: "v" * 100}, True),
        ({str(number): "" for number in range(32)}, True),
        ({str(number): "" for number in range(33)}, False),
        ({"": "v"}, False),
        ({"k" * 101: "v"}, False),
        ({"k": "v" * 101}, False),
    ],
)
def test_labels_have_limits(labels: Mapping[str, str], good: bool) -> None:
    new = NewInstance(InstanceKey("default", "order", "x"), Payload("{}"), labels)
    if good:
        new.check()
    else:
        with pytest.raises(InvalidField):
            new.check()


def test_a_page_token_is_good_for_the_same_question_only() -> None:
    def scope(**options: object) -> list[object]:
        return InstanceFilter("default", "order", **options).scope()  # type: ignore[arg-type]

    different = [
        scope(),
        scope(statuses=(InstanceStatus.QUEUED,)),
        scope(labels={"a": "1"}),
        scope(labels={"a": "2"}),
        scope(created_from=1),
        scope(created_before=1),
        scope(oldest_first=True),
        InstanceFilter("default", "other").scope(),
        InstanceFilter("other", "order").scope(),
    ]
    assert all(one != other for place, one in enumerate(different) for other in different[:place])
    both = (InstanceStatus.QUEUED, InstanceStatus.RUNNING)
    assert scope(statuses=both) == scope(statuses=both[::-1])
    assert scope(labels={"a": "1", "b": "2"}) == scope(labels={"b": "2", "a": "1"})
    assert scope(with_payloads=True) == scope()


def test_only_so_many_labels_can_be_asked_for() -> None:
    InstanceFilter("default", "order", labels={str(number): "" for number in range(4)}).check()
    with pytest.raises(InvalidField):
        InstanceFilter("default", "order", labels={str(number): "" for number in range(5)}).check()


def test_exactly_three_statuses_are_ends() -> None:
    ended = {status for status in InstanceStatus if status.ended}
    assert ended == {InstanceStatus.COMPLETE, InstanceStatus.ERRORED, InstanceStatus.TERMINATED}


def test_the_refusal_of_an_instance_that_has_ended_names_it() -> None:
    refusal = terminal(InstanceKey("default", "order", "x"), InstanceStatus.ERRORED)
    assert refusal.metadata == {"instance_id": "x", "status": "errored"}


def test_a_failure_without_a_name_gets_one() -> None:
    assert Failure("", "m").shortened().name != ""
    assert Failure("E", "m", True, "d").shortened() == Failure("E", "m", True, "d")


# ---- frames


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_steps_have_names_of_some_length(name: str) -> None:
    for frame in (
        Frame(1, StepDone(name, 1, StepPolicy(), None)),
        Frame(1, BeginSteps(), (Opening("fine", 1, StepPolicy()), Opening(name, 1, StepPolicy()))),
    ):
        with pytest.raises(InvalidStepName):
            frame.check()
    Frame(1, StepDone("x" * 256, 1, StepPolicy(), None)).check()


def test_attempts_count_from_one() -> None:
    for frame in (
        Frame(1, StepDone("a", 0, StepPolicy(), None)),
        Frame(1, BeginSteps(), (Opening("a", 0, StepPolicy()),)),
    ):
        with pytest.raises(InvalidField):
            frame.check()


@pytest.mark.parametrize(
    ("wait", "good"),
    [
        (Wait("w", StepType.SLEEP, 0), True),
        (Wait("w", StepType.SLEEP, YEAR), True),
        (Wait("w", StepType.SLEEP, YEAR + 1), False),
        (Wait("w", StepType.WAIT_FOR_EVENT, SECOND, event_type="go"), True),
        (Wait("w", StepType.WAIT_FOR_EVENT, SECOND - 1, event_type="go"), False),
        (Wait("w", StepType.WAIT_FOR_EVENT, YEAR + 1, event_type="go"), False),
        (Wait("w", StepType.WAIT_FOR_EVENT, None, event_type="go"), False),
    ],
)
def test_waits_have_a_shortest_and_a_longest_time(wait: Wait, good: bool) -> None:
    if good:
        wait.check(YEAR)
    else:
        with pytest.raises(DurationOutOfRange):
            wait.check(YEAR)


def test_an_event_wait_names_a_type_that_can_be() -> None:
    with pytest.raises(InvalidEventType):
        Wait("w", StepType.WAIT_FOR_EVENT, HOUR, event_type="no way").check(YEAR)


def test_a_sleep_ends_at_its_instant_and_not_after_the_longest_timer() -> None:
    assert Wait("w", StepType.SLEEP, HOUR).ends_at(5, YEAR) == 5 + HOUR
    assert Wait("w", StepType.SLEEP, until=3).ends_at(5, YEAR) == 3
    assert Wait("w", StepType.SLEEP, until=5 + YEAR).ends_at(5, YEAR) == 5 + YEAR
    with pytest.raises(DurationOutOfRange):
        Wait("w", StepType.SLEEP, until=6 + YEAR).ends_at(5, YEAR)


def test_a_frame_knows_about_how_much_it_brings() -> None:
    small = Frame(1, StepDone("a", 1, StepPolicy(), None)).size
    assert Frame(1, StepDone("a", 1, StepPolicy(), Payload("x" * 5000))).size >= small + 5000
    assert Frame(1, StepDone("a", 1, StepPolicy(), None)).body.step_name == "a"
    assert Frame(1, BeginSteps()).body.step_name is None
