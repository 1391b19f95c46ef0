"""Workflows: domain to protobuf and back, and what their workers say and hear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from stepwell.v1 import workers_pb2, workflows_pb2
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire.reading import Reader
from stepwell_server.domain.spine.frames import Body, News
from stepwell_server.domain.values.errors import InvalidField
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.workflows.frames import (
    DEFAULT_EVENT_TIMEOUT,
    BeginSteps,
    Finish,
    RunNews,
    StepDone,
    StepFailed,
    Suspend,
    Wait,
)
from stepwell_server.domain.workflows.instances import Event, Instance, InstanceStatus, Step, StepStatus, StepType
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.workflows.book import RunInput

"""How much of a run's state goes into one message; the rest follows."""

STATUSES = {
    InstanceStatus.QUEUED: workflows_pb2.INSTANCE_STATUS_QUEUED,
    InstanceStatus.RUNNING: workflows_pb2.INSTANCE_STATUS_RUNNING,
    InstanceStatus.WAITING: workflows_pb2.INSTANCE_STATUS_WAITING,
    InstanceStatus.WAITING_FOR_PAUSE: workflows_pb2.INSTANCE_STATUS_WAITING_FOR_PAUSE,
    InstanceStatus.PAUSED: workflows_pb2.INSTANCE_STATUS_PAUSED,
    InstanceStatus.COMPLETE: workflows_pb2.INSTANCE_STATUS_COMPLETE,
    InstanceStatus.ERRORED: workflows_pb2.INSTANCE_STATUS_ERRORED,
    InstanceStatus.TERMINATED: workflows_pb2.INSTANCE_STATUS_TERMINATED,
}
STEP_TYPES = {
    StepType.DO: workflows_pb2.STEP_TYPE_DO,
    StepType.SLEEP: workflows_pb2.STEP_TYPE_SLEEP,
    StepType.WAIT_FOR_EVENT: workflows_pb2.STEP_TYPE_WAIT_FOR_EVENT,
}
STEP_STATUSES = {
    StepStatus.PENDING: workflows_pb2.STEP_STATUS_PENDING,
    StepStatus.RUNNING: workflows_pb2.STEP_STATUS_RUNNING,
    StepStatus.WAITING: workflows_pb2.STEP_STATUS_WAITING,
    StepStatus.COMPLETED: workflows_pb2.STEP_STATUS_COMPLETED,
    StepStatus.ERRORED: workflows_pb2.STEP_STATUS_ERRORED,
    StepStatus.CANCELLED: workflows_pb2.STEP_STATUS_CANCELLED,
}


def instance_to_pb(instance: Instance, *, payloads: bool = True) -> workflows_pb2.Instance:
    """An instance; without its params and output if those are not wanted."""
    key = instance.key
    message = workflows_pb2.Instance(
        namespace=key.namespace,
        workflow=key.workflow,
        instance_id=key.instance_id,
        run_number=instance.run_number,
        status=STATUSES[instance.status],
        labels=instance.labels,
        created_at=convert.timestamp_to_pb(instance.created_at),
        updated_at=convert.timestamp_to_pb(instance.updated_at),
        started_at=convert.optional_timestamp(instance.started_at),
        ended_at=convert.optional_timestamp(instance.ended_at),
        wake_at=convert.optional_timestamp(instance.wake_at),
        revision=instance.revision,
        trace=instance.trace if payloads else {},
    )
    if instance.failure is not None:
        message.failure.CopyFrom(convert.failure_to_pb(instance.failure))
    if payloads and instance.params is not None:
        message.params.CopyFrom(convert.payload_to_pb(instance.params))
    if payloads and instance.output is not None:
        message.output.CopyFrom(convert.payload_to_pb(instance.output))
    return message


def entry_to_pb(entry: Step | Event) -> workflows_pb2.HistoryEntry:
    """A step or an event of a run's history."""
    if isinstance(entry, Step):
        return workflows_pb2.HistoryEntry(step=step_to_pb(entry))
    return workflows_pb2.HistoryEntry(event=event_to_pb(entry))


def step_to_pb(step: Step) -> workflows_pb2.Step:
    """A step, as people see it."""
    message = workflows_pb2.Step(
        name=step.name,
        type=STEP_TYPES[step.type],
        status=STEP_STATUSES[step.status],
        attempts=step.attempts,
        next_retry_at=convert.optional_timestamp(step.next_retry_at),
        wake_at=convert.optional_timestamp(step.wake_at),
        event_type=step.event_type,
        created_at=convert.timestamp_to_pb(step.created_at),
        updated_at=convert.timestamp_to_pb(step.updated_at),
    )
    if step.policy is not None:
        message.timeout.CopyFrom(convert.duration_to_pb(step.policy.timeout))
        if step.policy.retry.max_attempts is not None:
            message.max_attempts = step.policy.retry.max_attempts
    if step.result is not None:
        message.result.CopyFrom(convert.payload_to_pb(step.result))
    if step.failure is not None:
        message.failure.CopyFrom(convert.failure_to_pb(step.failure))
    return message


def event_to_pb(event: Event, *, payload: bool = True) -> workflows_pb2.Event:
    """An event; without its payload if that is not wanted."""
    message = workflows_pb2.Event(
        event_id=event.position,
        type=event.type,
        created_at=convert.timestamp_to_pb(event.created_at),
        delivered_at=convert.optional_timestamp(event.delivered_at),
        consumed_by_step=event.consumed_by_step,
        trace=event.trace if payload else {},
    )
    if payload and event.payload is not None:
        message.payload.CopyFrom(convert.payload_to_pb(event.payload))
    return message


# ---- what workers say


async def _step_done(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    done = frame.step_done
    result = await reader.payload("result", done.result)
    return StepDone(done.name, done.attempt, reader.policy(done.policy), result)


async def _step_failed(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    failed = frame.step_failed
    failure = convert.failure_from_pb(failed.failure)
    return StepFailed(failed.name, failed.attempt, reader.policy(failed.policy), failure)


async def _wait(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    wait = frame.wait
    match wait.WhichOneof("until"):
        case "sleep":
            return Wait(wait.name, StepType.SLEEP, duration=convert.duration_from_pb(wait.sleep))
        case "sleep_until":
            return Wait(wait.name, StepType.SLEEP, until=convert.timestamp_from_pb(wait.sleep_until))
        case "event":
            given = wait.event.HasField("timeout")
            timeout = convert.duration_from_pb(wait.event.timeout) if given else DEFAULT_EVENT_TIMEOUT
            return Wait(wait.name, StepType.WAIT_FOR_EVENT, duration=timeout, event_type=wait.event.type)
        case _:
            raise InvalidField("until is not set: set sleep, sleep_until or event", field="until")


async def _suspend(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    return Suspend(frame.suspend.cached, frame.suspend.known_revision, frame.suspend.yields)


async def _finish(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    match frame.finish.WhichOneof("result"):
        case "output":
            return Finish(output=await reader.payload("output", frame.finish.output))
        case "failure":
            return Finish(failure=convert.failure_from_pb(frame.finish.failure))
        case _:
            return Finish()


async def begins(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    """A frame that only begins executions, as it says nothing else."""
    return BeginSteps()


BODIES: Mapping[str, Callable[[workers_pb2.WorkerFrame, Reader], Awaitable[Body]]] = {
    "step_done": _step_done,
    "step_failed": _step_failed,
    "wait": _wait,
    "suspend": _suspend,
    "finish": _finish,
    "begin_steps": begins,
}
"""Frames about a run, by their names."""


# ---- what workers hear


def task_to_pb(assignment: Assignment, input: RunInput) -> Iterator[workers_pb2.Task | workers_pb2.TaskState]:
    """A run and as much of its state as fits into one message, then the rest of it."""
    task, started, known = assignment.task, input.started, input.known_revision
    pages = list(_pages(input.steps, 0 if started is None else started.params.size))
    workflow = workers_pb2.WorkflowInput(
        run_number=task.run_number,
        revision=task.revision,
        cached=known > 0,
        known_revision=known,
        interruptions=task.interruptions,
        steps=pages[0],
        more=len(pages) > 1,
        max_steps=assignment.max_steps,
    )
    if started is not None:
        workflow.created_at.CopyFrom(convert.timestamp_to_pb(started.created_at))
        if not known:
            workflow.params.CopyFrom(convert.payload_to_pb(started.params))
    yield workers_pb2.Task(workflow=workflow, trace={} if started is None else started.trace)
    for number, page in enumerate(pages[1:], 2):
        yield workers_pb2.TaskState(steps=page, more=number < len(pages))


def has_state(task: workers_pb2.Task) -> bool:
    """Whether it is a task whose state comes in pages, and can be asked for."""
    return task.HasField("workflow")


def without_state(task: workers_pb2.Task) -> None:
    """Leave the state of a run out of a full message: its worker asks for it."""
    del task.workflow.steps[:]
    task.workflow.ClearField("params")
    task.workflow.more = True


def news_to_pb(news: News) -> Iterator[workers_pb2.Cancel | workers_pb2.Resolved]:
    """Write the news of a run for its worker, without the answers to its frames."""
    if not isinstance(news, RunNews):
        return
    for name in news.timed_out:
        yield workers_pb2.Cancel(step=name, reason="the execution took too long")
    pages = list(_pages(news.resolved)) if news.resolved else []
    for number, page in enumerate(pages, 1):
        revision = news.revision if number == len(pages) else 0  # known only once all of it is there
        yield workers_pb2.Resolved(steps=page, revision=revision)


def _pages(steps: Sequence[Step], taken: int = 0) -> Iterator[list[workers_pb2.StepState]]:
    """The steps, split so that each part fits into a message, the first one beside what is taken there already."""
    page: list[workers_pb2.StepState] = []
    size = taken
    for step in map(step_state_to_pb, steps):
        step_size = step.ByteSize()
        if (page or size) and size + step_size > PART_BYTES:
            yield page
            page, size = [], 0
        page.append(step)
        size += step_size
    yield page


def step_state_to_pb(step: Step) -> workers_pb2.StepState:
    """Convert a step for the worker of its run."""
    state = workers_pb2.StepState(
        name=step.name,
        type=STEP_TYPES[step.type],
        status=STEP_STATUSES[step.status],
        attempts=step.attempts,
        event_type=step.event_type,
        max_attempts=0 if step.policy is None else step.policy.retry.max_attempts or 0,
        trace=step.trace,
    )
    if step.result is not None:
        state.result.CopyFrom(convert.payload_to_pb(step.result))
    if step.failure is not None:
        state.failure.CopyFrom(convert.failure_to_pb(step.failure))
    wake_at = step.next_retry_at if step.type is StepType.DO else step.wake_at
    if wake_at is not None:
        state.wake_at.CopyFrom(convert.timestamp_to_pb(wake_at))
    if step.event_at is not None:
        state.event_at.CopyFrom(convert.timestamp_to_pb(step.event_at))
    return state
