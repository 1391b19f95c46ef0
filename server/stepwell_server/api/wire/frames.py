"""Frames of the worker protocol: protobuf to domain and back. Total functions; what cannot be read is rejected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from stepwell.v1 import common_pb2, workers_pb2
from stepwell_server.api.edge import validate
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.hooks.hooks import Hook
from stepwell_server.domain.spine import frames
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import DEFAULT_EVENT_TIMEOUT, Frame, FrameAnswer, Opening, RunNews
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.leases import Held, session_key
from stepwell_server.domain.spine.tasks import Reason, Stop, Task
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.payloads import EMPTY_OBJECT, Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.workflows.instances import Step, StepType
from stepwell_server.engine.spine.local_workers import Delivery
from stepwell_server.engine.spine.turns import Turns
from stepwell_server.engine.workers import Hello, WorkerView

STATE_BYTES = 3 * 1024 * 1024
"""How much of a task's state goes into one message; the rest follows."""

FRAME_COST = 100
OPENING_COST = 100
"""A frame and each body that it begins cost as much to read as so many characters of JSON."""

_KINDS = {
    TaskKind.WORKFLOW: workers_pb2.HANDLER_KIND_WORKFLOW,
    TaskKind.HOOK: workers_pb2.HANDLER_KIND_HOOK,
}
_FROM_KINDS = {number: kind for kind, number in _KINDS.items()}
_STOPS = {
    Stop.NONE: workers_pb2.STOP_NONE,
    Stop.PAUSE: workers_pb2.STOP_PAUSE,
    Stop.CANCEL: workers_pb2.STOP_CANCEL,
}
_REASONS = {
    Reason.RUN: workers_pb2.TASK_REASON_RUN,
    Reason.RESUME: workers_pb2.TASK_REASON_RESUME,
    Reason.RETRY: workers_pb2.TASK_REASON_RETRY,
    Reason.WAKE: workers_pb2.TASK_REASON_WAKE,
    Reason.TAKEOVER: workers_pb2.TASK_REASON_TAKEOVER,
}

NUMBERED = frozenset({"step_done", "step_failed", "wait", "suspend", "finish", "begin_steps", "outcome"})
"""Frames that change a run or a job and carry a number."""


# ---- from the worker


def hello_from_pb(hello: workers_pb2.Hello, principal: str) -> Hello:
    """How a worker of that principal introduces itself."""
    namespace = convert.namespace_from_pb(hello.namespace)
    return Hello(
        worker_id=hello.worker_id,
        session_id=session_key(namespace, principal, hello.session_id),
        sdk=hello.sdk,
        protocol_version=hello.protocol_version,
        namespace=namespace,
        hosted=tuple(_registration(namespace, one) for one in hello.handlers),
        held=tuple(map(held_from_pb, hello.held)),
    )


def _registration(namespace: str, one: workers_pb2.Handler) -> Registration:
    return Registration(handler_from_pb(namespace, one), one.workflow.description or one.hook.description)


def handler_from_pb(namespace: str, one: workers_pb2.Handler | workers_pb2.HandlerRef) -> Handler:
    """Whom work is addressed to."""
    return Handler(namespace, kind_from_pb(one.kind), one.name)


def kind_from_pb(kind: workers_pb2.HandlerKind.ValueType) -> TaskKind:
    """What kind of handler it is."""
    if kind not in _FROM_KINDS:
        raise InvalidField("kind must say what kind of handler it is", field="kind")
    return _FROM_KINDS[kind]


def held_from_pb(held: workers_pb2.HeldTask) -> Held:
    """A lease, as its holder names it."""
    return Held(held.task_id, held.fence)


class FrameReader:
    """Reads numbered frames, with the server's defaults where they say nothing."""

    def __init__(self, limits: Limits, default: StepPolicy, turns: Turns) -> None:
        self._limits = limits
        self._default = default
        self._turns = turns

    async def read(self, frame: workers_pb2.WorkerFrame) -> Frame:
        """The frame. One that breaks a rule is rejected under its number."""
        if frame.number < 1:
            raise InvalidField("frames about a task count from 1", field="number")
        try:
            await self.check(frame)
            read = Frame(frame.number, await self._body(frame), tuple([one async for one in self._openings(frame)]))
            read.check()
        except StepwellError as refusal:
            return Frame(frame.number, frames.Rejected(refusal))
        return read

    async def check(self, frame: workers_pb2.WorkerFrame) -> None:
        """Refuse a frame with a value that cannot be, whatever it is about."""
        await self._turns.spend(FRAME_COST)
        await self._turns.work(validate.standard.parts(frame))

    async def _body(self, frame: workers_pb2.WorkerFrame) -> frames.Body:
        match frame.WhichOneof("body"):
            case "step_done":
                done = frame.step_done
                result = await self._payload("result", done.result)
                return frames.StepDone(done.name, done.attempt, self.policy(done.policy), result)
            case "step_failed":
                failed = frame.step_failed
                failure = convert.failure_from_pb(failed.failure)
                return frames.StepFailed(failed.name, failed.attempt, self.policy(failed.policy), failure)
            case "wait":
                return self._wait(frame.wait)
            case "suspend":
                return frames.Suspend(frame.suspend.cached, frame.suspend.known_revision, frame.suspend.yields)
            case "finish":
                return await self._finish(frame.finish)
            case "outcome":
                has_failed = frame.outcome.HasField("failure")
                return frames.Outcome(convert.failure_from_pb(frame.outcome.failure) if has_failed else None)
            case _:
                return frames.BeginSteps()

    def _wait(self, wait: workers_pb2.Wait) -> frames.Wait:
        match wait.WhichOneof("until"):
            case "sleep":
                return frames.Wait(wait.name, StepType.SLEEP, duration=convert.duration_from_pb(wait.sleep))
            case "sleep_until":
                return frames.Wait(wait.name, StepType.SLEEP, until=convert.timestamp_from_pb(wait.sleep_until))
            case "event":
                given = wait.event.HasField("timeout")
                timeout = convert.duration_from_pb(wait.event.timeout) if given else DEFAULT_EVENT_TIMEOUT
                return frames.Wait(wait.name, StepType.WAIT_FOR_EVENT, duration=timeout, event_type=wait.event.type)
            case _:
                raise InvalidField("say what it waits for: sleep, sleep_until or event", field="until")

    async def _finish(self, finish: workers_pb2.Finish) -> frames.Finish:
        match finish.WhichOneof("result"):
            case "output":
                return frames.Finish(output=await self._payload("output", finish.output))
            case "failure":
                return frames.Finish(failure=convert.failure_from_pb(finish.failure))
            case _:
                return frames.Finish()

    async def _payload(self, field: str, payload: common_pb2.Payload) -> Payload | None:
        read = convert.payload_from_pb(payload)
        if read is None:
            return None
        limits = self._limits
        await self._turns.work(read.scan(field, most_bytes=limits.payload_bytes, deepest=limits.payload_depth))
        return read

    async def _openings(self, frame: workers_pb2.WorkerFrame) -> AsyncIterator[Opening]:
        for one in frame.opens:
            yield Opening(one.name, one.attempt, self.policy(one.policy), one.begun)
            await self._turns.spend(OPENING_COST)

    def policy(self, policy: workers_pb2.StepPolicy) -> StepPolicy:
        """How a step is executed, with the defaults where nothing is said."""
        default = self._default
        if not policy.HasField("retry") and not policy.HasField("timeout"):
            return default
        retry = convert.retry_from_pb(policy.retry, default.retry)
        has_timeout = policy.HasField("timeout")
        timeout = default.timeout
        if has_timeout:
            timeout = convert.duration_within("timeout", policy.timeout, self._limits.timer)
        return StepPolicy(retry, timeout)


# ---- to the worker


def policy_to_pb(policy: StepPolicy) -> workers_pb2.StepPolicy:
    """How a step is executed."""
    return workers_pb2.StepPolicy(
        retry=convert.retry_to_pb(policy.retry), timeout=convert.duration_to_pb(policy.timeout)
    )


def delivery_to_pb(delivery: Delivery) -> Iterator[workers_pb2.ServerFrame]:
    """A task and as much of its state as fits into one message, then the rest of it."""
    task, started, hook = delivery.handed.task, delivery.handed.started, delivery.handed.hook
    if hook is not None:
        yield _task_frame(task, hook=_hook_input(task, hook), trace=hook.trace)
        return
    pages = list(_pages(delivery.steps, 0 if started is None else started.params.size))
    known = delivery.handed.known_revision
    workflow = workers_pb2.WorkflowInput(
        run_number=task.run_number,
        revision=task.revision,
        cached=known > 0,
        known_revision=known,
        interruptions=task.interruptions,
        steps=pages[0],
        more=len(pages) > 1,
        max_steps=delivery.handed.max_steps,
    )
    if started is not None:
        workflow.created_at.CopyFrom(convert.timestamp_to_pb(started.created_at))
        if not known:
            workflow.params.CopyFrom(convert.payload_to_pb(started.params))
    yield _task_frame(task, workflow=workflow, trace={} if started is None else started.trace)
    for number, page in enumerate(pages[1:], 2):
        state = workers_pb2.TaskState(steps=page, more=number < len(pages))
        yield workers_pb2.ServerFrame(task_id=task.id, fence=task.fence, task_state=state)


def _task_frame(task: Task, **given: Any) -> workers_pb2.ServerFrame:
    handler = handler_to_pb(task.handler)
    body = workers_pb2.Task(handler=handler, key=task.key, reason=_REASONS[task.reason], **given)
    return workers_pb2.ServerFrame(task_id=task.id, fence=task.fence, task=body)


def _hook_input(task: Task, hook: Hook) -> workers_pb2.HookInput:
    (opened,) = load_open(task.open_steps)
    return workers_pb2.HookInput(
        payload=convert.payload_to_pb(hook.payload or EMPTY_OBJECT),
        attempt=opened.attempt,
        max_attempts=hook.retry.max_attempts or 0,
        idempotency_key=hook.idempotency_key,
        created_at=convert.timestamp_to_pb(hook.created_at),
        timeout=convert.duration_to_pb(opened.policy.timeout),
        deadline_at=convert.timestamp_to_pb(opened.ends_at),
    )


def _pages(steps: Sequence[Step], taken: int = 0) -> Iterator[list[workers_pb2.StepState]]:
    """The steps, split so that each part fits into a message, the first one beside what is taken there already."""
    page: list[workers_pb2.StepState] = []
    size = taken
    for step in map(step_to_pb, steps):
        step_size = step.ByteSize()
        if (page or size) and size + step_size > STATE_BYTES:
            yield page
            page, size = [], 0
        page.append(step)
        size += step_size
    yield page


def step_to_pb(step: Step) -> workers_pb2.StepState:
    """What a worker must know of a step."""
    state = workers_pb2.StepState(
        name=step.name,
        type=convert.STEP_TYPES[step.type],
        status=convert.STEP_STATUSES[step.status],
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


def news_to_pb(held: Held, news: RunNews) -> Iterator[workers_pb2.ServerFrame]:
    """What a worker learns of a run that it holds: one frame per fact."""
    for answer in news.answers:
        yield _answer_to_pb(held, answer)
    for name in news.timed_out:
        cancel = workers_pb2.Cancel(step=name, reason="the execution took too long")
        yield workers_pb2.ServerFrame(task_id=held.task_id, fence=held.fence, cancel=cancel)
    pages = list(_pages(news.resolved)) if news.resolved else []
    for number, page in enumerate(pages, 1):
        revision = news.revision if number == len(pages) else 0  # known only once all of it is there
        resolved = workers_pb2.Resolved(steps=page, revision=revision)
        yield workers_pb2.ServerFrame(task_id=held.task_id, fence=held.fence, resolved=resolved)
    if news.stale is not None:
        stale = workers_pb2.Stale(reason=convert.reason_to_pb(news.stale))
        yield workers_pb2.ServerFrame(task_id=held.task_id, fence=held.fence, stale=stale)


def _answer_to_pb(held: Held, answer: FrameAnswer) -> workers_pb2.ServerFrame:
    frame = workers_pb2.ServerFrame(task_id=held.task_id, fence=held.fence, number=answer.number)
    if answer.refusal is not None:
        frame.refused.CopyFrom(convert.item_error_to_pb(answer.refusal))
        return frame
    ack = frame.ack
    ack.stop = _STOPS[answer.stop]
    ack.released = answer.released
    ack.revision = answer.revision
    if answer.wake_at is not None:
        ack.wake_at.CopyFrom(convert.timestamp_to_pb(answer.wake_at))
    return frame


def stop_to_pb(stop: Stop) -> workers_pb2.Stop.ValueType:
    """What a worker must do."""
    return _STOPS[stop]


def handler_to_pb(handler: Handler) -> workers_pb2.HandlerRef:
    """Whom work is addressed to."""
    return workers_pb2.HandlerRef(kind=_KINDS[handler.kind], name=handler.name)


def worker_to_pb(view: WorkerView) -> workers_pb2.Worker:
    """A worker, as operators see it."""
    session = view.session
    return workers_pb2.Worker(
        worker_id=session.worker_id,
        sdk=session.sdk,
        replica_id=session.replica_id,
        connected_at=convert.timestamp_to_pb(session.connected_at),
        handlers=map(handler_to_pb, session.handlers),
        tasks=[
            workers_pb2.RunningTask(
                handler=handler_to_pb(handler), key=key, claimed_at=convert.timestamp_to_pb(claimed_at)
            )
            for handler, key, claimed_at in view.tasks
        ],
        task_count=view.task_count,
    )
