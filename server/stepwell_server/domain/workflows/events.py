"""Engine events: what happens to workflows, told by hooks to whoever wants to know. `EngineEvent` in hooks.proto."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from stepwell_server.domain.hooks.hooks import HookKey, NewHook
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.tasks import Reason, Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import Micros, to_rfc3339
from stepwell_server.domain.workflows.instances import InstanceKey


class EngineEventName(StrEnum):
    """What can be hooked."""

    ENQUEUED = "workflow.enqueued"
    COMPLETED = "workflow.completed"
    ERRORED = "workflow.errored"
    TERMINATED = "workflow.terminated"


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to an instance."""

    name: EngineEventName
    workflow: Handler
    instance_id: str
    run_number: int
    at: Micros
    reason: str = ""
    run_at: Micros | None = None
    failure: Failure | None = None

    @property
    def handler(self) -> Handler:
        """Whom it is told."""
        return Handler(self.workflow.namespace, TaskKind.HOOK, self.name)

    def to_hook(self, unique: str) -> NewHook:
        """The hook that tells it, under an id that no other has."""
        told: dict[str, object] = {
            "event": self.name,
            "namespace": self.workflow.namespace,
            "workflow": self.workflow.name,
            "instance_id": self.instance_id,
            "run_number": self.run_number,
            "at": to_rfc3339(self.at),
        }
        if self.run_at is not None:
            told |= {"reason": self.reason, "run_at": to_rfc3339(self.run_at)}
        if self.failure is not None:
            told["failure"] = {"name": self.failure.name, "message": self.failure.message}
        key = HookKey(self.workflow.namespace, unique)
        return NewHook(key, self.name, Payload(json.dumps(told)), unique, self.run_at)


def created(key: InstanceKey, at: Micros, run_number: int = 0) -> EngineEvent:
    """That a run was created, and can begin at once."""
    return EngineEvent(EngineEventName.ENQUEUED, key.handler, key.instance_id, run_number, at, "create", at)


def enqueued(before: Task, after: Task, at: Micros) -> EngineEvent | None:
    """That an instance can run, or will be able to at its time, if that is what a change of its task means."""
    reason = _why_enqueued(before, after)
    if reason is None:
        return None
    name = EngineEventName.ENQUEUED
    return EngineEvent(name, after.handler, after.key, after.run_number, at, reason, after.run_at)


def ended(task: Task, name: EngineEventName, at: Micros, failure: Failure | None = None) -> EngineEvent:
    """That an instance ended."""
    return EngineEvent(name, task.handler, task.key, task.run_number, at, failure=failure)


def _why_enqueued(before: Task, after: Task) -> str | None:
    if after.status is not TaskStatus.PENDING or after.reason is Reason.TAKEOVER:
        return None
    match before.status:
        case TaskStatus.PENDING | TaskStatus.BLOCKED:
            return "event" if after.run_at < before.run_at else None
        case TaskStatus.PARKED:
            return "resume"
        case TaskStatus.PROCESSING:
            is_release = after.reason in (Reason.RETRY, Reason.WAKE) and after.frame_number > before.frame_number
            return after.reason.value if is_release else None
