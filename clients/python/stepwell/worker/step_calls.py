"""The open steps of a run: what the workflow function waits for at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from stepwell.errors import (
    StepMaxAttemptsExceeded,
    StepResultInvalid,
    StepTimeoutError,
    from_failure,
    raised_for,
    to_failure,
)
from stepwell.handlers import Body, Outcome
from stepwell.request_ids import RequestIds
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.v1.common_pb2 import Payload
from stepwell.worker.executions import Execution, Surroundings
from stepwell.worker.server_terms import Terms
from stepwell.workflows.steps import StepOptions

_NOT_THE_AUTHORS = (StepMaxAttemptsExceeded, StepResultInvalid)  # never retried, whatever a test of the author says


class CallState(Enum):
    """Where an open step stands in the worker."""

    WAITING = auto()  # for a time, an event or its next execution: the server says when
    ASKED = auto()  # its body may begin as soon as that can be announced
    OPENING = auto()  # announced; its body begins when that is durable
    EXECUTING = auto()  # its body runs
    VERDICT = auto()  # its body failed; the server decides whether it is tried again


@dataclass(slots=True, eq=False)
class StepCall:
    """A step that the workflow function waits for."""

    name: str
    type: states.StepType.ValueType
    future: asyncio.Future[pb.StepState]
    ended: Callable[[StepCall, Outcome], None]  # told how an execution of the body ended
    state: CallState = CallState.WAITING
    body: Body | None = None
    context: Context | None = None
    options: StepOptions | None = None
    policy: pb.StepPolicy | None = None
    attempt: int = 0
    execution: Execution | None = None

    @property
    def has_begun(self) -> bool:
        """Whether an execution is under way, or announced."""
        return self.state in (CallState.OPENING, CallState.EXECUTING)

    def execute(self, ids: RequestIds, around: Surroundings) -> None:
        """Begin the body, whose calls get these ids. How it ends is told, unless it is abandoned."""
        assert self.body is not None and self.context is not None
        self.execution = Execution(partial(self.ended, self), around)
        # A copy each time: a thread that timed out may still be inside the one before.
        self.execution.start(self.body, ids.enter(self.context.copy()))

    def limit(self, terms: Terms) -> None:
        """Fail the execution after the step's timeout. On a virtual clock the server does that."""
        if self.execution is not None and not terms.virtual_clock:
            said = self.options.timeout if self.options else None
            seconds = terms.step_timeout if said is None else said.total_seconds()
            self.execution.limit(seconds, StepTimeoutError)

    def abandon(self) -> None:
        """Stop the body that executes, if one does; its result is ignored."""
        if self.execution is not None:
            self.execution.abandon()
            self.execution = None

    def settle(self, state: pb.StepState, error: BaseException | None) -> None:
        """Let the function have the end of the step; `error` is what its body raised, if it did so in this process."""
        if self.future.done():
            return
        if state.status == states.STEP_STATUS_COMPLETED:
            self.future.set_result(state)
        else:
            failed = from_failure(state.failure) if error is None else raised_for(error, state.failure)
            self.future.set_exception(failed)

    def max_attempts(self, terms: Terms) -> float:
        """How many executions there may be."""
        said = self.options.retry.attempts() if self.options and self.options.retry else None
        return terms.max_attempts if said is None else said

    def is_retryable(self, error: BaseException) -> bool:
        """Ask the author's own test about an error."""
        if self.options is None or self.options.retry is None or isinstance(error, _NOT_THE_AUTHORS):
            return True
        return self.options.retry.allows(error)

    def announce(self, frame: pb.WorkerFrame, *, begun: bool = False) -> None:
        """Say in a frame that the body begins with its Ack, or that it began before a frame could name it."""
        opens = frame.opens.add(name=self.name, attempt=self.attempt, begun=begun)
        if self.policy is not None:
            opens.policy.CopyFrom(self.policy)

    def succeeded(self, result: Payload | None) -> pb.WorkerFrame:
        """The report of what the body returned."""
        frame = pb.WorkerFrame()
        done = frame.step_done  # filled in place: a message that is given to another one is copied
        done.name, done.attempt = self.name, self.attempt
        if result is not None:
            done.result.CopyFrom(result)
        if self.policy is not None:
            done.policy.CopyFrom(self.policy)
        return frame

    def failed(self, error: BaseException) -> pb.WorkerFrame:
        """The report of what the body raised."""
        failure = to_failure(error, non_retryable=not self.is_retryable(error))
        told = pb.StepFailed(name=self.name, attempt=self.attempt, failure=failure, policy=self.policy)
        return pb.WorkerFrame(step_failed=told)


class OpenCalls:
    """The steps that the workflow function waits for, by name."""

    __slots__ = ("_calls", "asked", "busy")

    def __init__(self) -> None:
        self.asked: list[StepCall] = []
        self.busy = 0  # calls that do not wait for the server
        self._calls: dict[str, StepCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[StepCall]:
        return iter(self._calls.values())

    def get(self, name: str) -> StepCall | None:
        """The open call of that name."""
        return self._calls.get(name)

    def holds(self, call: StepCall) -> bool:
        """Whether the call is still open."""
        return self._calls.get(call.name) is call

    def add(self, call: StepCall) -> None:
        """The function waits for the step from now on."""
        self._calls[call.name] = call

    def move(self, call: StepCall, state: CallState) -> None:
        """The call is in that state from now on."""
        self.busy += (state is not CallState.WAITING) - (call.state is not CallState.WAITING)
        call.state = state

    def ask(self, call: StepCall) -> None:
        """Let the body begin as soon as that can be announced."""
        self.move(call, CallState.ASKED)
        self.asked.append(call)

    def take_asked(self, most: float) -> list[StepCall]:
        """The first calls that asked, at most so many: their bodies are to be announced."""
        number = int(min(len(self.asked), most))
        taken, self.asked = self.asked[:number], self.asked[number:]
        for call in taken:
            self.move(call, CallState.OPENING)
        return taken

    def stop(self, call: StepCall) -> None:
        """Stop the body, or what it waits for to begin: the server says when it is executed again."""
        call.abandon()
        if call.state is CallState.ASKED:
            self.asked.remove(call)
        self.move(call, CallState.WAITING)

    def close(self, call: StepCall) -> None:
        """The function no longer waits for the step."""
        self.stop(call)
        del self._calls[call.name]

    def clear(self) -> list[StepCall]:
        """Close all calls, and return them."""
        calls = list(self)
        self._calls, self.asked, self.busy = {}, [], 0
        for call in calls:
            call.abandon()
        return calls
