"""Views of instances for clients: the status, and the steps and events of the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from stepwell.payloads import from_payload
from stepwell.v1 import workflows_pb2 as pb
from stepwell.views import Failure, instant, numbers_of, stored_failure

R = TypeVar("R")


class InstanceStatus(StrEnum):
    """Where an instance stands. The last three but `UNKNOWN` are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    WAITING_FOR_PAUSE = "waitingForPause"
    PAUSED = "paused"
    COMPLETE = "complete"
    ERRORED = "errored"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        """Whether only a restart leads on from here."""
        return self in (InstanceStatus.COMPLETE, InstanceStatus.ERRORED, InstanceStatus.TERMINATED)


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class StepType(StrEnum):
    """The kind of a step."""

    DO = "do"
    SLEEP = "sleep"
    WAIT_FOR_EVENT = "waitForEvent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class InstanceInfo(Generic[R]):
    """An instance as of its current run. `output` is set if it is complete, `error` if it errored."""

    id: str
    workflow: str
    status: InstanceStatus
    run_number: int
    revision: int
    output: R | None = None
    error: Failure | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    params: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    wake_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A step in the history of a run."""

    name: str
    type: StepType
    status: StepStatus
    attempts: int
    max_attempts: int | None = None
    timeout: timedelta | None = None
    result: Any = None
    error: Failure | None = None
    next_retry_at: datetime | None = None
    wake_at: datetime | None = None
    event_type: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventEntry:
    """An event in the history of a run."""

    event_id: int
    type: str
    payload: Any = None
    created_at: datetime | None = None
    delivered_at: datetime | None = None
    consumed_by_step: str = ""


HistoryEntry: TypeAlias = StepEntry | EventEntry


@dataclass(frozen=True, slots=True)
class InstanceChange(Generic[R]):
    """A newer state of a watched instance, with the steps that changed if they were asked for."""

    instance: InstanceInfo[R]
    steps: tuple[StepEntry, ...] = ()


_STATUSES = {
    pb.INSTANCE_STATUS_QUEUED: InstanceStatus.QUEUED,
    pb.INSTANCE_STATUS_RUNNING: InstanceStatus.RUNNING,
    pb.INSTANCE_STATUS_WAITING: InstanceStatus.WAITING,
    pb.INSTANCE_STATUS_WAITING_FOR_PAUSE: InstanceStatus.WAITING_FOR_PAUSE,
    pb.INSTANCE_STATUS_PAUSED: InstanceStatus.PAUSED,
    pb.INSTANCE_STATUS_COMPLETE: InstanceStatus.COMPLETE,
    pb.INSTANCE_STATUS_ERRORED: InstanceStatus.ERRORED,
    pb.INSTANCE_STATUS_TERMINATED: InstanceStatus.TERMINATED,
}
_NUMBERS = {status: number for number, status in _STATUSES.items()}
_STEP_STATUSES = {
    pb.STEP_STATUS_PENDING: StepStatus.PENDING,
    pb.STEP_STATUS_RUNNING: StepStatus.RUNNING,
    pb.STEP_STATUS_WAITING: StepStatus.WAITING,
    pb.STEP_STATUS_COMPLETED: StepStatus.COMPLETED,
    pb.STEP_STATUS_ERRORED: StepStatus.ERRORED,
    pb.STEP_STATUS_CANCELLED: StepStatus.CANCELLED,
}
_STEP_TYPES = {
    pb.STEP_TYPE_DO: StepType.DO,
    pb.STEP_TYPE_SLEEP: StepType.SLEEP,
    pb.STEP_TYPE_WAIT_FOR_EVENT: StepType.WAIT_FOR_EVENT,
}


def status_numbers(
    given: InstanceStatus | str | Iterable[InstanceStatus | str] | None,
) -> list[pb.InstanceStatus.ValueType]:
    """The wire's numbers of one status or several. ValueError if a status cannot be looked for."""
    return numbers_of(_NUMBERS, given)


def status_of(instance: pb.Instance) -> InstanceStatus:
    """The status word of an instance; a number that this SDK does not know is `unknown`."""
    return _STATUSES.get(instance.status, InstanceStatus.UNKNOWN)


def instance_info(instance: pb.Instance, result_type: Any = None) -> InstanceInfo[Any]:
    """An instance as users see it, its output built into `result_type`."""
    status = status_of(instance)
    return InstanceInfo(
        id=instance.instance_id,
        workflow=instance.workflow,
        status=status,
        run_number=instance.run_number,
        revision=instance.revision,
        output=from_payload(instance.output, result_type) if status is InstanceStatus.COMPLETE else None,
        error=stored_failure(instance.failure) if status is InstanceStatus.ERRORED else None,
        labels=dict(instance.labels),
        params=from_payload(instance.params),
        created_at=instant(instance, "created_at"),
        updated_at=instant(instance, "updated_at"),
        started_at=instant(instance, "started_at"),
        ended_at=instant(instance, "ended_at"),
        wake_at=instant(instance, "wake_at"),
    )


def history_entry(entry: pb.HistoryEntry) -> HistoryEntry:
    """A step or an event as users see it."""
    return step_entry(entry.step) if entry.HasField("step") else event_entry(entry.event)


def step_entry(step: pb.Step) -> StepEntry:
    """A step as users see it."""
    return StepEntry(
        name=step.name,
        type=_STEP_TYPES.get(step.type, StepType.UNKNOWN),
        status=_STEP_STATUSES.get(step.status, StepStatus.UNKNOWN),
        attempts=step.attempts,
        max_attempts=step.max_attempts if step.HasField("max_attempts") else None,
        timeout=step.timeout.ToTimedelta() if step.HasField("timeout") else None,
        result=from_payload(step.result),
        error=stored_failure(step.failure) if step.HasField("failure") else None,
        next_retry_at=instant(step, "next_retry_at"),
        wake_at=instant(step, "wake_at"),
        event_type=step.event_type,
        created_at=instant(step, "created_at"),
        updated_at=instant(step, "updated_at"),
    )


def event_entry(event: pb.Event) -> EventEntry:
    """An event as users see it."""
    return EventEntry(
        event_id=event.event_id,
        type=event.type,
        payload=from_payload(event.payload),
        created_at=instant(event, "created_at"),
        delivered_at=instant(event, "delivered_at"),
        consumed_by_step=event.consumed_by_step,
    )
