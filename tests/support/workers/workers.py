"""Workers that a test drives by hand, frame by frame. They wait for frames by condition and never sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from google.protobuf.duration_pb2 import Duration
from grpc import aio
from sqlalchemy import select, update

from stepwell.errors import CallFailed, failure_of, reason_name
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workers_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.domain.values.times import SECOND
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.schema import tasks
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served

WORKFLOW, HOOK = pb.HANDLER_KIND_WORKFLOW, pb.HANDLER_KIND_HOOK


def handlers(*names: str, hooks: Iterable[str] = ()) -> list[pb.Handler]:
    """Handlers of these workflows and hooks."""
    return [pb.Handler(kind=WORKFLOW, name=name) for name in names] + [
        pb.Handler(kind=HOOK, name=name) for name in hooks
    ]


@dataclass(eq=False)
class HandWorker:
    """A worker without an SDK. Frames that nobody waited for yet stay in the inbox."""

    channel: aio.Channel
    names: tuple[str, ...] = ("order",)
    hooks: tuple[str, ...] = ()
    worker_id: str = "hand"
    namespace: str = ""
    session_id: str = field(default_factory=lambda: uuid4().hex)
    metadata: tuple[tuple[str, str], ...] = ()
    inbox: list[pb.ServerFrame] = field(default_factory=list)
    messages: list[workers_pb2.ConnectResponse] = field(default_factory=list)
    end: CallFailed | None = None
    """Why the stream ended, if it did not end well."""
    is_over: bool = False
    _stream: Any = None
    _reading: asyncio.Task[None] | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _beats: int = 0

    def hello(self, **changes: Any) -> pb.Hello:
        """How it introduces itself."""
        said: dict[str, Any] = {
            "worker_id": self.worker_id,
            "session_id": self.session_id,
            "sdk": "by-hand/1",
            "protocol_version": 1,
            "namespace": self.namespace,
            "handlers": handlers(*self.names, hooks=self.hooks),
        }
        return pb.Hello(**said | changes)

    # ---- the stream

    def open(self) -> None:
        """Open a stream and say nothing."""
        self._stream = WorkerServiceStub(self.channel).Connect(metadata=self.metadata or None)
        self._arrived, self.inbox, self.messages = asyncio.Event(), [], []
        self.end, self.is_over, self._beats = None, False, 0
        self._reading = asyncio.create_task(self._read(self._stream))

    async def connect(self, *frames: pb.WorkerFrame, credit: int = 0, **changes: Any) -> pb.Welcome:
        """Open a stream, say hello, and grant credit. Returns the welcome."""
        self.open()
        granted = [grant(credit)] if credit else []
        await self.say(pb.WorkerFrame(hello=self.hello(**changes)), *granted, *frames)
        return (await self.next("welcome")).welcome

    async def say(self, *frames: pb.WorkerFrame) -> None:
        """Send these frames as one message."""
        await self._stream.write(workers_pb2.ConnectRequest(frames=frames))

    async def close_side(self) -> None:
        """Say that nothing more will come, and see the stream end."""
        await self._stream.done_writing()
        await self.until_over()

    async def goodbye(self) -> None:
        """Leave for good."""
        await self.say(pb.WorkerFrame(goodbye=pb.Goodbye()))
        await self.until_over()

    async def break_off(self) -> None:
        """Lose the stream, as a broken network would."""
        if self._stream is not None:
            self._stream.cancel()
        if self._reading is not None:
            await self._reading
        self._stream = self._reading = None

    async def until_over(self) -> CallFailed | None:
        """Wait for the end of the stream. None: it ended well."""
        await self._until(lambda: self.is_over)
        return self.end

    async def _read(self, stream: Any) -> None:
        try:
            while (message := await stream.read()) is not aio.EOF:
                self.messages.append(message)
                self.inbox.extend(message.frames)
                self._arrived.set()
        except aio.AioRpcError as error:
            self.end = failure_of(error)
        except asyncio.CancelledError:
            pass
        self.is_over = True
        self._arrived.set()

    # ---- waiting

    async def next(self, *bodies: str, task_id: int | None = None, number: int | None = None) -> pb.ServerFrame:
        """The next frame of one of these kinds, about that task, answering that number."""

        def found() -> pb.ServerFrame | None:
            for frame in self.inbox:
                wanted = frame.WhichOneof("body") in bodies
                if wanted and task_id in (None, frame.task_id) and number in (None, frame.number):
                    return frame
            return None

        await self._until(lambda: found() is not None or self.is_over)
        frame = found()
        if frame is None:
            raise self.end or AssertionError(f"the stream ended without {bodies}")
        self.inbox.remove(frame)
        return frame

    async def _until(self, condition: Any) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            kinds = [frame.WhichOneof("body") for frame in self.inbox]
            raise AssertionError(f"it did not come; the inbox has {kinds}") from None

    def has(self, body: str) -> bool:
        """Whether a frame of that kind has come and nobody waited for it."""
        return any(frame.WhichOneof("body") == body for frame in self.inbox)

    async def beat(self, *jobs: Job) -> pb.ServerHeartbeat:
        """A heartbeat that renews these leases, and its answer. What the server had said before is there by then."""
        self._beats += 1
        beat = pb.Heartbeat(held=held(*jobs), heartbeat_number=self._beats)
        await self.say(pb.WorkerFrame(heartbeat=beat))
        while True:
            answer = (await self.next("heartbeat")).heartbeat
            if answer.heartbeat_number == self._beats:
                return answer

    # ---- tasks

    async def take(self, *, ack: bool = True) -> Job:
        """The next task, acknowledged."""
        frame = await self.next("task")
        job = Job(self, frame.task_id, frame.fence, frame.task)
        if ack:
            await self.say(job.stamp(pb.WorkerFrame(task_ack=pb.TaskAck())))
        return job


@dataclass(eq=False)
class Job:
    """A task that a worker holds, and the numbers of its frames."""

    worker: HandWorker
    task_id: int
    fence: int
    task: pb.Task
    number: int = 0

    @property
    def run(self) -> pb.WorkflowInput:
        """What the task says of its run."""
        return self.task.workflow

    @property
    def hook(self) -> pb.HookInput:
        """What the task says of its hook."""
        return self.task.hook

    @property
    def steps(self) -> dict[str, pb.StepState]:
        """The steps that came with it, by name."""
        return {step.name: step for step in self.run.steps}

    def stamp(self, frame: pb.WorkerFrame) -> pb.WorkerFrame:
        """The frame as one about this task, numbered if it is of that kind and has no number."""
        stamped = pb.WorkerFrame()
        stamped.CopyFrom(frame)
        stamped.task_id, stamped.fence = self.task_id, self.fence
        if frame.WhichOneof("body") not in ("task_ack", "need_state") and not frame.number:
            self.number += 1
            stamped.number = self.number
        return stamped

    async def send(self, *frames: pb.WorkerFrame) -> list[pb.WorkerFrame]:
        """Send frames as one message, without waiting for answers. Returns them as they were sent."""
        stamped = [self.stamp(frame) for frame in frames]
        await self.worker.say(*stamped)
        return stamped

    async def answer(self, number: int) -> pb.ServerFrame:
        """What the server says to the frame of that number."""
        return await self.worker.next("ack", "refused", task_id=self.task_id, number=number)

    async def report(self, *frames: pb.WorkerFrame) -> list[pb.Ack]:
        """Send frames as one message, and wait until all are acknowledged."""
        sent = await self.send(*frames)
        answers = [await self.answer(frame.number) for frame in sent]
        assert [one.WhichOneof("body") for one in answers] == ["ack"] * len(sent), answers
        return [one.ack for one in answers]

    async def tell(self, frame: pb.WorkerFrame) -> pb.Ack:
        """Send one frame, and wait until it is acknowledged."""
        (ack,) = await self.report(frame)
        return ack

    async def refused(self, frame: pb.WorkerFrame) -> str:
        """Send one frame that must be refused, and return the reason."""
        (sent,) = await self.send(frame)
        answer = await self.answer(sent.number)
        assert answer.WhichOneof("body") == "refused", answer
        return reason_name(answer.refused.reason)

    async def stale(self) -> str:
        """Wait to be told that the lease is lost, and return the reason."""
        frame = await self.worker.next("stale", task_id=self.task_id)
        return reason_name(frame.stale.reason)

    async def resolved(self) -> dict[str, pb.StepState]:
        """Wait for steps that changed by themselves."""
        frame = await self.worker.next("resolved", task_id=self.task_id)
        assert frame.fence == self.fence
        return {step.name: step for step in frame.resolved.steps}


def held(*jobs: Job) -> list[pb.HeldTask]:
    """The leases of these tasks."""
    return [pb.HeldTask(task_id=job.task_id, fence=job.fence) for job in jobs]


def grant(tasks: int) -> pb.WorkerFrame:
    """Credit for so many tasks."""
    return pb.WorkerFrame(credit=pb.Credit(tasks=tasks))


@dataclass(eq=False)
class UnaryWorker:
    """A worker without a stream: one call per exchange."""

    channel: aio.Channel
    names: tuple[str, ...] = ("order",)
    hooks: tuple[str, ...] = ()
    session_id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def stub(self) -> Any:
        """The service."""
        return WorkerServiceStub(self.channel)

    async def register(self) -> pb.Welcome:
        """Say what it hosts."""
        known = {"hooks": self.hooks, "session_id": self.session_id, "worker_id": "unary"}
        hello = HandWorker(self.channel, self.names, **known).hello()
        answer = await self.stub.RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello))
        welcome: pb.Welcome = answer.welcome
        return welcome

    async def claim(self, most: int = 1, *, wait: float = 0, request_id: str = "") -> list[pb.ServerFrame]:
        """Ask for work."""
        request = workers_pb2.ClaimTasksRequest(session_id=self.session_id, max_tasks=most, request_id=request_id)
        if wait:
            request.wait.CopyFrom(Duration(seconds=int(wait)))
        return list((await self.stub.ClaimTasks(request)).frames)

    async def commit(self, task: pb.ServerFrame, *frames: pb.WorkerFrame) -> list[pb.ServerFrame]:
        """Report frames about one task."""
        stamped = []
        for frame in frames:
            one = pb.WorkerFrame()
            one.CopyFrom(frame)
            one.task_id, one.fence = task.task_id, task.fence
            stamped.append(one)
        request = workers_pb2.CommitTaskRequest(session_id=self.session_id, frames=stamped)
        return list((await self.stub.CommitTask(request)).frames)

    async def renew(self, tasks: Iterable[pb.ServerFrame]) -> list[workers_pb2.RenewTasksResult]:
        """Extend leases."""
        leases = [pb.HeldTask(task_id=one.task_id, fence=one.fence) for one in tasks]
        request = workers_pb2.RenewTasksRequest(session_id=self.session_id, tasks=leases)
        return list((await self.stub.RenewTasks(request)).results)


async def close_all(workers: Iterable[HandWorker]) -> None:
    """Lose all streams: the end of a test."""
    for worker in workers:
        with suppress(asyncio.CancelledError):
            await worker.break_off()


LEASE, ACK_WINDOW = 30, 10
"""Seconds, of a server with default settings."""


async def age_leases(server: Served, seconds: float) -> None:
    """Let this much time pass for every lease, and for nothing else."""
    older = update(tasks).where(tasks.c.locked_until.is_not(None))
    older = older.values(locked_until=tasks.c.locked_until - round(seconds * SECOND))
    await server.app.db.run_tx(lambda tx: tx.execute(older).rowcount)


async def lease_left(server: Served, job: Job) -> float:
    """Seconds until the lease of a task lapses, as it is stored. 0: nobody holds it."""
    left = select(tasks.c.locked_until - lease_now()).where(tasks.c.id == job.task_id)
    return float((await server.app.db.run_tx(lambda tx: tx.execute(left).scalar_one()) or 0) / SECOND)
