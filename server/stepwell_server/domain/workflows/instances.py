"""Workflows: instances, their runs, steps and events, and every status an instance can have.

                 claim                suspend                 due, event
    queued ───────────────▶ running ───────────▶ waiting ─────────────────▶ (running)
      ▲  │                   │   │                  │
      │  │ pause       pause │   │ finish           │ pause
      │  ▼                   ▼   ▼                  ▼
      └─ paused ◀─ waitingForPause  complete, errored   paused          terminate: from any of them
      resume      next boundary                                         restart: from anywhere, to queued

The status of a live instance is what its task says (`status_of`); the instance's row keeps a copy, to list by. An
instance has a task exactly as long as it has not ended, and the two have the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.tasks import BEGUN_PRIORITY, Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.errors import InstanceTerminal, InvalidEventType, InvalidField, InvalidInstanceId
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.names import is_name
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.traces import Trace, check_trace

ID_LENGTH = 100
LABELS = 32
LABEL_LENGTH = 100
LABELS_ASKED = 4

PRIORITY = {Reason.WAKE: 1, Reason.RETRY: 2, Reason.RESUME: BEGUN_PRIORITY, Reason.RUN: 5}
"""Runs that have begun come before new ones."""


class InstanceStatus(StrEnum):
    """Where an instance stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    WAITING_FOR_PAUSE = "waiting_for_pause"
    PAUSED = "paused"
    COMPLETE = "complete"
    ERRORED = "errored"
    TERMINATED = "terminated"

    @property
    def ended(self) -> bool:
        """Whether only a restart can change it."""
        return self in (InstanceStatus.COMPLETE, InstanceStatus.ERRORED, InstanceStatus.TERMINATED)


class StepType(StrEnum):
    """The kind of a step."""

    DO = "do"
    SLEEP = "sleep"
    WAIT_FOR_EVENT = "wait_for_event"

    @property
    def counts(self) -> bool:
        """Whether it counts for the limit of steps per run."""
        return self is not StepType.SLEEP


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    """Never stored: what its task lists as open is shown so."""
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    """Never stored: what a run that has ended left open is shown so."""

    @property
    def final(self) -> bool:
        """Whether it stays so for the rest of its run."""
        return self in (StepStatus.COMPLETED, StepStatus.ERRORED)


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """The key of an instance."""

    namespace: str
    workflow: str
    instance_id: str

    @property
    def handler(self) -> Handler:
        """The code that runs it."""
        return _handler(self.namespace, self.workflow)


@lru_cache(maxsize=1000)
def _handler(namespace: str, workflow: str) -> Handler:
    return Handler(namespace, TaskKind.WORKFLOW, workflow)


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as it is stored, as of its current run."""

    id: int
    key: InstanceKey
    run_number: int
    status: InstanceStatus
    params: Payload | None
    output: Payload | None
    failure: Failure | None
    labels: Mapping[str, str]
    created_at: Micros
    updated_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    revision: int
    wake_at: Micros | None = None
    trace: Trace = field(default_factory=dict)

    @property
    def head(self) -> Head:
        """Where it stands."""
        return Head(self.id, self.revision, self.status)


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to create."""

    key: InstanceKey
    params: Payload
    labels: Mapping[str, str] = field(default_factory=dict)
    trace: Trace = field(default_factory=dict)

    def check(self) -> None:
        """Refuse an id, labels or a trace that break their rules."""
        check_instance_id(self.key.instance_id)
        check_trace(self.trace)
        if len(self.labels) > LABELS:
            raise InvalidField(f"an instance has at most {LABELS} labels", field="labels", limit=LABELS)
        for name, value in self.labels.items():
            if not 0 < len(name) <= LABEL_LENGTH or len(value) > LABEL_LENGTH:
                raise InvalidField(f"labels have at most {LABEL_LENGTH} characters, keys at least one", field="labels")


class Head(NamedTuple):
    """Where an instance stands."""

    id: int
    revision: int
    status: InstanceStatus


class Step(NamedTuple):
    """A step of one run, as it is stored."""

    name: str
    type: StepType
    status: StepStatus
    position: int
    """Revision of the run at which it was first stored: its place in the history."""
    revision: int
    """Revision of the run at which it last changed."""
    created_at: Micros
    updated_at: Micros
    attempts: int = 0
    policy: StepPolicy | None = None
    next_retry_at: Micros | None = None
    wake_at: Micros | None = None
    event_type: str = ""
    event_at: Micros | None = None
    result: Payload | None = None
    failure: Failure | None = None
    trace: Trace = {}
    """That of the event that ended its wait."""

    @property
    def due_at(self) -> Micros:
        """When its wait is over. Only for one that waits."""
        due_at = self.next_retry_at if self.type is StepType.DO else self.wake_at
        assert due_at is not None
        return due_at

    def left(self) -> Step:
        """The step as its run left it when it ended."""
        if self.status.final:
            return self
        return self._replace(status=StepStatus.CANCELLED, next_retry_at=None)

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        failure = 0 if self.failure is None else self.failure.size
        return 300 + len(self.name) + (0 if self.result is None else self.result.size) + failure

    def ended_by(self, event: Event) -> Step:
        """The wait, over because the event came."""
        return self._replace(
            status=StepStatus.COMPLETED, result=event.payload, event_at=event.created_at, trace=event.trace
        )


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one run, as it is stored. Its position is its place in the history, and its id."""

    position: int
    type: str
    payload: Payload | None
    created_at: Micros
    delivered_at: Micros | None = None
    consumed_by_step: str = ""
    trace: Trace = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to store."""

    key: InstanceKey
    type: str
    payload: Payload | None
    trace: Trace = field(default_factory=dict)

    def check(self) -> None:
        """Refuse a type, an id or a trace that breaks its rule."""
        check_instance_id(self.key.instance_id)
        check_trace(self.trace)
        check_event_type(self.type)


@dataclass(frozen=True, slots=True)
class InstanceFilter:
    """Which instances of a workflow are wanted, and which end to begin with."""

    namespace: str
    workflow: str
    statuses: tuple[InstanceStatus, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created_from: Micros | None = None
    created_before: Micros | None = None
    with_payloads: bool = False
    oldest_first: bool = False

    def check(self) -> None:
        """Refuse more labels than can be looked up at once."""
        if len(self.labels) > LABELS_ASKED:
            raise InvalidField(f"at most {LABELS_ASKED} labels can be asked for", field="labels", limit=LABELS_ASKED)

    def scope(self) -> list[object]:
        """The scope of a page token."""
        labels = sorted(self.labels.items())
        times = [self.created_from, self.created_before]
        return [self.namespace, self.workflow, sorted(self.statuses), labels, times, self.oldest_first]


def status_of(task: Task) -> InstanceStatus:
    """Where a live instance stands, by its task."""
    match task.status:
        case TaskStatus.PROCESSING:
            return InstanceStatus.WAITING_FOR_PAUSE if task.stop is Stop.PAUSE else InstanceStatus.RUNNING
        case TaskStatus.PARKED:
            return InstanceStatus.PAUSED
        case TaskStatus.PENDING | TaskStatus.BLOCKED:
            waits = task.reason in (Reason.WAKE, Reason.RETRY)
            return InstanceStatus.WAITING if waits else InstanceStatus.QUEUED


def check_instance_id(instance_id: str) -> None:
    """Refuse what cannot be the id of an instance."""
    if not is_name(instance_id, ID_LENGTH):
        raise InvalidInstanceId(
            f'an instance id is 1 to {ID_LENGTH} letters, digits, "-" or "_", not beginning with "-"',
            field="instance_id",
            instance_id=instance_id,
        )


def check_event_type(event_type: str) -> None:
    """Refuse what cannot be the type of an event."""
    if not is_name(event_type, ID_LENGTH):
        raise InvalidEventType(
            f'an event type is 1 to {ID_LENGTH} letters, digits, "-" or "_", not beginning with "-"',
            field="type",
            type=event_type,
        )


def terminal(key: InstanceKey, status: InstanceStatus) -> InstanceTerminal:
    """The refusal of what an instance that has ended cannot do."""
    return InstanceTerminal("the instance has ended", instance_id=key.instance_id, status=status)
