"""Frames of the worker protocol: protobuf to domain and back.

The frames of a primitive are in its own module; here are the tables that name them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from stepwell.v1 import workers_pb2
from stepwell_server.api.edge import validate
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import hooks, workflows
from stepwell_server.api.wire.reading import Reader
from stepwell_server.domain.spine.frames import Body, Frame, FrameAnswer, News, Opening, Outcome, Rejected
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.leases import Held, session_key
from stepwell_server.domain.spine.tasks import Reason, Stop
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.engine.hooks.kind import HookInput
from stepwell_server.engine.sessions import Hello
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.turns import Turns
from stepwell_server.engine.workers import WorkerView
from stepwell_server.engine.workflows.book import RunInput

FRAME_COST = 100
OPENING_COST = 100
"""A frame and each body that it begins cost as much to read as so many characters of JSON."""

_KINDS = {kind: workers_pb2.HandlerKind.Value(f"HANDLER_KIND_{kind.name}") for kind in TaskKind}
_FROM_KINDS = {number: kind for kind, number in _KINDS.items()}
_STOPS = {
    Stop.NONE: workers_pb2.STOP_NONE,
    Stop.PAUSE: workers_pb2.STOP_PAUSE,
}
_REASONS = {
    Reason.RUN: workers_pb2.TASK_REASON_RUN,
    Reason.RESUME: workers_pb2.TASK_REASON_RESUME,
    Reason.RETRY: workers_pb2.TASK_REASON_RETRY,
    Reason.WAKE: workers_pb2.TASK_REASON_WAKE,
    Reason.TAKEOVER: workers_pb2.TASK_REASON_TAKEOVER,
}

_TASKS: Mapping[type, Callable[[Assignment, Any], Iterator[Message]]] = {
    RunInput: workflows.task_to_pb,
    HookInput: hooks.task_to_pb,
}
"""How tasks are written, by the type of their input: the task, then what of it did not fit into that message."""
_NEWS = (workflows.news_to_pb,)
"""How news of a task is written, besides the answers to frames."""


async def _outcome(frame: workers_pb2.WorkerFrame, reader: Reader) -> Body:
    has_failed = frame.outcome.HasField("failure")
    return Outcome(convert.failure_from_pb(frame.outcome.failure) if has_failed else None)


_BODIES = {**workflows.BODIES, "outcome": _outcome}

NUMBERED = frozenset(_BODIES)
"""Frames that change what a task advances, and carry a number."""


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
        hosted=tuple(_registration(namespace, handler) for handler in hello.handlers),
        held=tuple(map(held_from_pb, hello.held)),
    )


def _registration(namespace: str, handler: workers_pb2.Handler) -> Registration:
    named = handler.WhichOneof("definition")
    declared = {} if named is None else {"description": getattr(handler, named).description}
    return Registration(handler_from_pb(namespace, handler), declared)


def handler_from_pb(namespace: str, handler: workers_pb2.Handler | workers_pb2.HandlerRef) -> Handler:
    """The handler that work is addressed to."""
    return Handler(namespace, kind_from_pb(handler.kind), handler.name)


def kind_from_pb(kind: workers_pb2.HandlerKind.ValueType) -> TaskKind:
    """Convert the kind of a handler."""
    if kind not in _FROM_KINDS:
        raise InvalidField("kind is not set: name the kind of the handler", field="kind")
    return _FROM_KINDS[kind]


def held_from_pb(held: workers_pb2.HeldTask) -> Held:
    """A lease, as its holder names it."""
    return Held(held.task_id, held.fence)


class FrameReader:
    """Reads numbered frames, with the server's defaults where they say nothing."""

    def __init__(self, limits: Limits, default: StepPolicy, turns: Turns) -> None:
        self._reader = Reader(limits, default, turns)
        self._turns = turns

    async def read(self, frame: workers_pb2.WorkerFrame) -> Frame:
        """Read a frame. A frame that breaks a rule is rejected under its number."""
        if frame.number < 1:
            raise InvalidField("frames about a task count from 1", field="number")
        try:
            await self.check(frame)
            body = await _BODIES.get(frame.WhichOneof("body") or "", workflows.begins)(frame, self._reader)
            read = Frame(frame.number, body, tuple([opening async for opening in self._openings(frame)]))
            read.check()
        except StepwellError as refusal:
            return Frame(frame.number, Rejected(refusal))
        return read

    async def check(self, frame: workers_pb2.WorkerFrame) -> None:
        """Refuse a frame with a value that cannot be, whatever it is about."""
        await self._turns.spend(FRAME_COST)
        await self._turns.work(validate.standard.parts(frame))

    async def _openings(self, frame: workers_pb2.WorkerFrame) -> AsyncIterator[Opening]:
        for opening in frame.opens:
            yield Opening(opening.name, opening.attempt, self._reader.policy(opening.policy), opening.begun)
            await self._turns.spend(OPENING_COST)


# ---- to the worker


def policy_to_pb(policy: StepPolicy) -> workers_pb2.StepPolicy:
    """How a step is executed."""
    return workers_pb2.StepPolicy(
        retry=convert.retry_to_pb(policy.retry), timeout=convert.duration_to_pb(policy.timeout)
    )


def assignment_to_pb(assignment: Assignment) -> Iterator[workers_pb2.ServerFrame]:
    """A task and as much of its input as fits into one message, then the rest of it."""
    task = assignment.task
    for body in _TASKS[type(assignment.input)](assignment, assignment.input):
        if isinstance(body, workers_pb2.Task):
            body.handler.CopyFrom(handler_to_pb(task.handler))
            body.key, body.reason = task.key, _REASONS[task.reason]
            yield workers_pb2.ServerFrame(task_id=task.id, fence=task.fence, task=body)
        elif isinstance(body, workers_pb2.TaskState):
            yield workers_pb2.ServerFrame(task_id=task.id, fence=task.fence, task_state=body)


def news_to_pb(held: Held, news: News) -> Iterator[workers_pb2.ServerFrame]:
    """Write the news of a task for its worker: one frame per fact."""
    for answer in news.answers:
        yield _answer_to_pb(held, answer)
    for write in _NEWS:
        for body in write(news):
            frame = workers_pb2.ServerFrame(task_id=held.task_id, fence=held.fence)
            getattr(frame, "cancel" if isinstance(body, workers_pb2.Cancel) else "resolved").CopyFrom(body)
            yield frame
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
    """Convert the order to a worker."""
    return _STOPS[stop]


def handler_to_pb(handler: Handler) -> workers_pb2.HandlerRef:
    """The handler that work is addressed to."""
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
