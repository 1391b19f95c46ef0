"""A stage for runs without a server: frames go into a list, answers are written by hand, time stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.v1.common_pb2 import Failure, Payload
from stepwell.worker.host import Work
from stepwell.worker.loop_turns import Turns
from stepwell.worker.run import Run
from stepwell.worker.server_terms import Terms
from stepwell.worker.threads import Pool
from stepwell.workflows.definition import WorkflowDefinition, workflow

LATER = Timestamp(seconds=2_000_000_000)


class ManualClock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[ManualTimer] = []

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> ManualTimer:
        timer = ManualTimer(self._now + delay, lambda: callback(*args))
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self._now += seconds
        due = [timer for timer in self._timers if timer.at <= self._now]
        self._timers = [timer for timer in self._timers if timer.at > self._now]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which this process does nothing: what is due happens with the next advance."""
        self._now += seconds

    def open_timers(self) -> int:
        return sum(not timer.is_cancelled for timer in self._timers)


@dataclass
class ManualTimer:
    at: float
    callback: Callable[[], Any]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class InlinePool:
    """Threads that need no waiting for: the function is called where it is handed over."""

    def call(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(done, job())


@dataclass
class Stage:
    """The host of one run, and the server's part in it."""

    terms: Terms = field(default_factory=Terms)
    clock: ManualClock = field(default_factory=ManualClock)
    turns: Turns = field(default_factory=Turns)
    pool: Pool = field(default_factory=InlinePool)
    is_draining: bool = False
    is_connected: bool = True
    sent: list[pb.WorkerFrame] = field(default_factory=list)
    let_go_work: list[Work] = field(default_factory=list)
    left: list[asyncio.Task[Any]] = field(default_factory=list)
    client: None = None
    rests: int = 0
    start_overs: list[Run] = field(default_factory=list)

    def send(self, frame: pb.WorkerFrame) -> None:
        self.sent.append(frame)

    def let_go(self, work: Work) -> None:
        self.let_go_work.append(work)

    def leave(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self.left.append(task)

    def start_over(self, run: Run) -> None:
        self.start_overs.append(run)

    def rested(self) -> None:
        self.rests += 1

    async def begin(self, function: Callable[..., Awaitable[Any]], *steps: pb.StepState, **fields: Any) -> Run:
        """Hand out a task, and let the run come to rest."""
        run = Run(self, definition_for(function), "order-1")
        run.attach(1, 1, task_of(steps=steps, **fields))
        await settle()
        return run

    def take(self) -> list[pb.WorkerFrame]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent

    def kinds(self) -> list[str]:
        """What was sent since the last time, in a word each: `step_done:a =b +c` says that b executes and opens c."""
        return [in_a_word(frame) for frame in self.take()]

    async def ack(self, run: Run, *numbers: int, **fields: Any) -> None:
        """Acknowledge frames; the fields go into the last Ack."""
        for number in numbers:
            run.acked(number, pb.Ack(**fields) if number == numbers[-1] else pb.Ack(stop=pb.STOP_NONE))
        await settle()

    async def resolve(self, run: Run, *steps: pb.StepState, revision: int = 0) -> None:
        run.resolved(pb.Resolved(steps=steps, revision=revision))
        await settle()


def task_of(**fields: Any) -> pb.Task:
    return pb.Task(workflow=pb.WorkflowInput(**fields))


def definition_for(function: Callable[..., Awaitable[Any]]) -> WorkflowDefinition[Any, Any]:
    return workflow("order")(function)


async def settle() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(40):
        await asyncio.sleep(0)


def in_a_word(frame: pb.WorkerFrame) -> str:
    body = frame.WhichOneof("body")
    assert body is not None
    name = getattr(getattr(frame, body), "name", "")
    opens = "".join(f" {'=' if step.begun else '+'}{step.name}" for step in frame.opens)
    return (f"{body}:{name}" if name else body) + opens


def done(name: str, result: str = "null", **fields: Any) -> pb.StepState:
    return state(name, states.STEP_STATUS_COMPLETED, result=Payload(json=result), attempts=1, **fields)


def slept(name: str) -> pb.StepState:
    return state(name, states.STEP_STATUS_COMPLETED, type=states.STEP_TYPE_SLEEP)


def pending(name: str, attempts: int = 0) -> pb.StepState:
    return state(name, states.STEP_STATUS_PENDING, attempts=attempts)


def waiting(name: str, type: Any = states.STEP_TYPE_DO, attempts: int = 0) -> pb.StepState:
    return state(name, states.STEP_STATUS_WAITING, type=type, attempts=attempts)


def failed(
    name: str, failure: str, message: str = "", type: Any = states.STEP_TYPE_DO, *, non_retryable: bool = False
) -> pb.StepState:
    stored = Failure(name=failure, message=message, non_retryable=non_retryable)
    return state(name, states.STEP_STATUS_ERRORED, type=type, failure=stored)


def state(name: str, status: Any, type: Any = states.STEP_TYPE_DO, **fields: Any) -> pb.StepState:
    return pb.StepState(name=name, type=type, status=status, **fields)
