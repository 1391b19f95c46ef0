"""Engine events: which change of a task is told, with which reason, and as what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell_server.domain.hooks.events import to_hook
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import HOUR, SECOND, Micros
from stepwell_server.domain.workflows.events import WorkflowEvent, created, ended, enqueued
from stepwell_server.domain.workflows.instances import InstanceKey

NOW: Micros = 1_700_000_000 * SECOND
ORDER = Handler("shop", TaskKind.WORKFLOW, "order")
OWNER = Owner("a" * 32, 1)


def task(status: TaskStatus, **changes: Any) -> Task:
    """The task of an instance."""
    made = Task(
        id=1,
        handler=ORDER,
        key="one",
        run_number=2,
        reason=Reason.RUN,
        priority=5,
        run_at=NOW,
        status=status,
        fence=7,
        revision=2,
        frame_number=3,
        stop=Stop.NONE,
        wake_again=False,
        interruptions=0,
        acked=True,
        open_steps="",
        owner=OWNER if status is TaskStatus.PROCESSING else None,
        locked_until=NOW if status is TaskStatus.PROCESSING else None,
        payload=None,
    )
    return made._replace(**changes)


HELD = task(TaskStatus.PROCESSING)
ASLEEP = task(TaskStatus.PENDING, run_at=NOW + HOUR, reason=Reason.WAKE)
PARKED = ASLEEP.parked()


@pytest.mark.parametrize("reason", [Reason.WAKE, Reason.RETRY])
def test_a_run_that_is_suspended_is_told_with_the_time_at_which_it_goes_on(reason: Reason) -> None:
    event = enqueued(HELD, HELD.advanced(4, "").released(NOW, NOW + HOUR, reason, 3), NOW)

    assert event is not None
    assert (event.name, event.reason, event.run_at) == (WorkflowEvent.ENQUEUED, reason, NOW + HOUR)
    assert to_hook(event, "id").process_at == NOW + HOUR


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (ASLEEP, ASLEEP.woken(NOW, Reason.WAKE, 3), "event"),
        (PARKED, PARKED.resumed(NOW, 3), "resume"),
        (HELD, HELD._replace(wake_again=True).advanced(4, "").released(NOW, NOW + HOUR, Reason.WAKE, 3), "wake"),
    ],
    ids=["an event came", "it was resumed", "something came while it was held"],
)
def test_what_makes_a_run_due_is_told_at_once(before: Task, after: Task, reason: str) -> None:
    event = enqueued(before, after, NOW)

    assert event is not None
    assert (event.reason, event.run_at) == (reason, NOW)
    assert event.about == {"workflow": "order", "instance_id": "one", "run_number": 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HELD, HELD.lapsed(NOW)),
        (HELD, HELD.given_back()),
        (HELD, HELD.advanced(4, "")),
        (HELD, HELD.renewed(OWNER, NOW, LeaseTimes())),
        (HELD, HELD.paused()),
        (HELD.paused(), HELD.paused().advanced(4, "").released(NOW, NOW + HOUR, Reason.WAKE, 3)),
        (ASLEEP, ASLEEP),
        (ASLEEP, ASLEEP.paused()),
        (PARKED, PARKED.woken(NOW, Reason.WAKE, 3)),
        (task(TaskStatus.PENDING), task(TaskStatus.PENDING).woken(NOW, Reason.WAKE, 3)),
    ],
    ids=[
        "its holder was lost",
        "it never arrived",
        "a step was done",
        "its lease was renewed",
        "it is to pause",
        "it pauses",
        "nothing happened",
        "it was parked",
        "an event came while it is parked",
        "an event came while it is due",
    ],
)
def test_what_makes_nothing_due_is_not_told(before: Task, after: Task) -> None:
    assert enqueued(before, after, NOW) is None


def test_a_new_run_is_told_as_due() -> None:
    hook = to_hook(created(InstanceKey("shop", "order", "one"), NOW, 3), "id")

    assert (hook.name, hook.key.namespace, hook.key.hook_id, hook.idempotency_key) == (
        "workflow.enqueued",
        "shop",
        "id",
        "id",
    )
    assert hook.handler == Handler("shop", TaskKind.HOOK, "workflow.enqueued")
    assert json.loads(hook.payload.json) == {
        "event": "workflow.enqueued",
        "namespace": "shop",
        "workflow": "order",
        "instance_id": "one",
        "run_number": 3,
        "at": "2023-11-14T22:13:20Z",
        "reason": "create",
        "run_at": "2023-11-14T22:13:20Z",
    }


def test_an_end_is_told_with_its_failure_and_no_time() -> None:
    failure = Failure("Boom", "it broke", details="a trace")
    hook = to_hook(ended(HELD, WorkflowEvent.ERRORED, NOW, failure), "id")

    told = json.loads(hook.payload.json)
    assert (hook.name, hook.process_at) == ("workflow.errored", None)
    assert told["failure"] == {"name": "Boom", "message": "it broke"}
    assert not {"reason", "run_at"} & told.keys()
