"""What a client is told: the status of an instance, the steps and events of its history, and where a hook stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from stepwell.durations import to_datetime
from stepwell.payloads import from_payload
from stepwell.retry import Retry, from_policy
from stepwell.v1 import hooks_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.common_pb2 import Failure

R = TypeVar("R")
S = TypeVar("S", bound=StrEnum)
N = TypeVar("N")


class Status(StrEnum):
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
        return self in (Status.COMPLETE, Status.ERRORED, Status.TERMINATED)


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
    """What kind of step it is."""

    DO = "do"
    SLEEP = "sleep"
    WAIT_FOR_EVENT = "waitForEvent"
    UNKNOWN = "unknown"


class HookStatus(StrEnum):
    """Where a hook stands. The last three but `UNKNOWN` are ends."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        """Whether only a retry leads on from here."""
        return self in (HookStatus.COMPLETED, HookStatus.FAILED, HookStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What went wrong, as it was stored."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class InstanceStatus(Generic[R]):
    """An instance as of its current run. `output` is set if it is complete, `error` if it errored."""

    id: str
    workflow: str
    status: Status
    run_number: int
    revision: int
    output: R | None = None
    error: ErrorInfo | None = None
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
    error: ErrorInfo | None = None
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

    instance: InstanceStatus[R]
    steps: tuple[StepEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class HookState:
    """A hook as it stands. `attempts` counts executions that began; `error` is what the last one failed with.

    `payload` is None in lists. `next_attempt_at` is None while it executes, and when it has ended.
    """

    id: str
    name: str
    status: HookStatus
    attempts: int
    max_attempts: int | None
    retry: Retry
    idempotency_key: str
    payload: Any = None
    error: ErrorInfo | None = None
    created_at: datetime | None = None
    process_at: datetime | None = None
    last_attempt_at: datetime | None = None
    next_attempt_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HookTarget:
    """A webhook that hooks of a name go to. `disabled`: its receiver answered 410, and it waits to be put again.

    `secrets` has one that was made for it, told once, to whoever puts it.
    """

    name: str
    url: str
    disabled: bool
    secrets: tuple[str, ...] = field(default=(), repr=False)
    created_at: datetime | None = None
    updated_at: datetime | None = None


_STATUSES = {
    pb.INSTANCE_STATUS_QUEUED: Status.QUEUED,
    pb.INSTANCE_STATUS_RUNNING: Status.RUNNING,
    pb.INSTANCE_STATUS_WAITING: Status.WAITING,
    pb.INSTANCE_STATUS_WAITING_FOR_PAUSE: Status.WAITING_FOR_PAUSE,
    pb.INSTANCE_STATUS_PAUSED: Status.PAUSED,
    pb.INSTANCE_STATUS_COMPLETE: Status.COMPLETE,
    pb.INSTANCE_STATUS_ERRORED: Status.ERRORED,
    pb.INSTANCE_STATUS_TERMINATED: Status.TERMINATED,
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

_HOOK_STATUSES = {
    hooks_pb2.HOOK_STATUS_PENDING: HookStatus.PENDING,
    hooks_pb2.HOOK_STATUS_PROCESSING: HookStatus.PROCESSING,
    hooks_pb2.HOOK_STATUS_COMPLETED: HookStatus.COMPLETED,
    hooks_pb2.HOOK_STATUS_FAILED: HookStatus.FAILED,
    hooks_pb2.HOOK_STATUS_CANCELLED: HookStatus.CANCELLED,
}
_HOOK_NUMBERS = {status: number for number, status in _HOOK_STATUSES.items()}


def status_numbers(given: Status | str | Iterable[Status | str] | None) -> list[pb.InstanceStatus.ValueType]:
    """The wire's numbers of one status or several. ValueError if one cannot be looked for."""
    return [_number(_NUMBERS, one) for one in _several(given)]


def hook_status_numbers(
    given: HookStatus | str | Iterable[HookStatus | str] | None,
) -> list[hooks_pb2.HookStatus.ValueType]:
    """The wire's numbers of one status of hooks or several. ValueError if one cannot be looked for."""
    return [_number(_HOOK_NUMBERS, one) for one in _several(given)]


def _several(given: str | Iterable[str] | None) -> Iterable[str]:
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"status is a status or several, not {given!r}")
    return given


def _number(numbers: Mapping[S, N], status: object) -> N:
    for known, number in numbers.items():
        if known == status:
            return number
    raise ValueError(f"status is one of {', '.join(numbers)}, not {status!r}")


def status_of(instance: pb.Instance) -> Status:
    """The status word of an instance; a number that this SDK does not know is `unknown`."""
    return _STATUSES.get(instance.status, Status.UNKNOWN)


def instance_status(instance: pb.Instance, result_type: Any = None) -> InstanceStatus[Any]:
    """An instance as users see it, its output built into `result_type`."""
    status = status_of(instance)
    return InstanceStatus(
        id=instance.instance_id,
        workflow=instance.workflow,
        status=status,
        run_number=instance.run_number,
        revision=instance.revision,
        output=from_payload(instance.output, result_type) if status is Status.COMPLETE else None,
        error=error_info(instance.failure) if status is Status.ERRORED else None,
        labels=dict(instance.labels),
        params=from_payload(instance.params),
        created_at=_instant(instance, "created_at"),
        updated_at=_instant(instance, "updated_at"),
        started_at=_instant(instance, "started_at"),
        ended_at=_instant(instance, "ended_at"),
        wake_at=_instant(instance, "wake_at"),
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
        error=error_info(step.failure) if step.HasField("failure") else None,
        next_retry_at=_instant(step, "next_retry_at"),
        wake_at=_instant(step, "wake_at"),
        event_type=step.event_type,
        created_at=_instant(step, "created_at"),
        updated_at=_instant(step, "updated_at"),
    )


def event_entry(event: pb.Event) -> EventEntry:
    """An event as users see it."""
    return EventEntry(
        event_id=event.event_id,
        type=event.type,
        payload=from_payload(event.payload),
        created_at=_instant(event, "created_at"),
        delivered_at=_instant(event, "delivered_at"),
        consumed_by_step=event.consumed_by_step,
    )


def hook_state(hook: hooks_pb2.Hook) -> HookState:
    """A hook as users see it."""
    return HookState(
        id=hook.hook_id,
        name=hook.name,
        status=_HOOK_STATUSES.get(hook.status, HookStatus.UNKNOWN),
        attempts=hook.attempts,
        max_attempts=hook.retry.max_attempts if hook.retry.HasField("max_attempts") else None,
        retry=from_policy(hook.retry),
        idempotency_key=hook.idempotency_key,
        payload=from_payload(hook.payload),
        error=error_info(hook.failure) if hook.HasField("failure") else None,
        created_at=_instant(hook, "created_at"),
        process_at=_instant(hook, "process_at"),
        last_attempt_at=_instant(hook, "last_attempt_at"),
        next_attempt_at=_instant(hook, "next_attempt_at"),
        ended_at=_instant(hook, "ended_at"),
    )


def hook_target(target: hooks_pb2.HookTarget, secrets: Iterable[str] = ()) -> HookTarget:
    """A target as users see it."""
    return HookTarget(
        name=target.name,
        url=target.url,
        disabled=target.disabled,
        secrets=tuple(secrets),
        created_at=_instant(target, "created_at"),
        updated_at=_instant(target, "updated_at"),
    )


def error_info(failure: Failure) -> ErrorInfo:
    """What went wrong, with a name in any case."""
    return ErrorInfo(failure.name or "UNKNOWN_ERROR", failure.message)


def _instant(message: Message, name: str) -> datetime | None:
    return to_datetime(getattr(message, name)) if message.HasField(name) else None
