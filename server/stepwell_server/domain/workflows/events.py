"""Engine events of workflows: a run can begin or go on, or it has ended."""

from __future__ import annotations

from enum import StrEnum

from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.tasks import Reason, Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import InstanceKey


class WorkflowEvent(StrEnum):
    """The changes of workflows that can trigger hooks."""

    ENQUEUED = "workflow.enqueued"
    COMPLETED = "workflow.completed"
    ERRORED = "workflow.errored"
    TERMINATED = "workflow.terminated"


def created(key: InstanceKey, at: Micros, run_number: int = 0) -> EngineEvent:
    """Say that a run was created, and can begin at once."""
    about = _about(key.workflow, key.instance_id, run_number)
    return EngineEvent(WorkflowEvent.ENQUEUED, key.namespace, at, about, "create", at)


def enqueued(before: Task, after: Task, at: Micros) -> EngineEvent | None:
    """Say that a run can go on, or will at its time, if a change of its task means that."""
    reason = _why_enqueued(before, after)
    if reason is None:
        return None
    return EngineEvent(WorkflowEvent.ENQUEUED, after.handler.namespace, at, _of_task(after), reason, after.run_at)


def ended(task: Task, name: WorkflowEvent, at: Micros, failure: Failure | None = None) -> EngineEvent:
    """Say that an instance ended."""
    return EngineEvent(name, task.handler.namespace, at, _of_task(task), failure=failure)


def _of_task(task: Task) -> dict[str, str | int]:
    return _about(task.handler.name, task.key, task.run_number)


def _about(workflow: str, instance_id: str, run_number: int) -> dict[str, str | int]:
    return {"workflow": workflow, "instance_id": instance_id, "run_number": run_number}


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
