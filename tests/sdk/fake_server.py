"""A server that only plays its part on the wire: it answers as a test tells it to, and stores nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from stepwell.v1 import errors_pb2
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as wf
from stepwell.v1.dispatchers_pb2_grpc import add_DispatcherServiceServicer_to_server
from stepwell.v1.hooks_pb2_grpc import add_HookServiceServicer_to_server
from stepwell.v1.transactions_pb2_grpc import add_TransactionServiceServicer_to_server
from stepwell.v1.workers_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.sdk.fake_dispatchers import FakeDispatchers
from tests.sdk.fake_hooks import FakeHooks, FakeTransactions, refuse

_ENDING = ("suspend", "finish", "outcome")


@dataclass
class WorkerStream:
    """One Connect stream: what came in, and a way to say something."""

    hello: pb.Hello
    acks: bool
    frames: list[pb.WorkerFrame] = field(default_factory=list)
    outgoing: asyncio.Queue[list[pb.ServerFrame] | None] = field(default_factory=asyncio.Queue)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def say(self, *frames: pb.ServerFrame) -> None:
        self.outgoing.put_nowait(list(frames))

    def cut(self) -> None:
        self.outgoing.put_nowait(None)

    def give(self, name: str, task_id: int = 1, fence: int = 1, **fields: Any) -> None:
        ref = pb.HandlerRef(kind=pb.HANDLER_KIND_WORKFLOW, name=name)
        task = pb.Task(handler=ref, key=f"{name}-{task_id}", workflow=pb.WorkflowInput(**fields))
        self.say(pb.ServerFrame(task_id=task_id, fence=fence, task=task))

    def give_hook(self, name: str, task_id: int = 1, fence: int = 1, **fields: Any) -> None:
        ref = pb.HandlerRef(kind=pb.HANDLER_KIND_HOOK, name=name)
        task = pb.Task(handler=ref, key=f"{name}-{task_id}", hook=pb.HookInput(**fields))
        self.say(pb.ServerFrame(task_id=task_id, fence=fence, task=task))

    async def until(self, body: str) -> pb.WorkerFrame:
        """The first frame of a kind, when it is there."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: any(frame.HasField(body) for frame in self.frames))
        return next(frame for frame in self.frames if frame.HasField(body))

    async def take(self, request: pb.ConnectRequest) -> None:
        async with self.arrived:
            self.frames.extend(request.frames)
            self.arrived.notify_all()
        acks = [_ack(frame) for frame in request.frames if frame.number and self.acks]
        if acks:
            self.say(*acks)


def _ack(frame: pb.WorkerFrame) -> pb.ServerFrame:
    ack = pb.Ack(stop=pb.STOP_NONE, released=frame.WhichOneof("body") in _ENDING)
    return pb.ServerFrame(task_id=frame.task_id, fence=frame.fence, number=frame.number, ack=ack)


class FakeWorkers(WorkerServiceServicer):
    """Welcomes every worker, and remembers its streams."""

    def __init__(self) -> None:
        self.acks = True
        self.refuses: grpc.StatusCode | None = None
        self.reason = ""  # of refusals
        self.refused: asyncio.Queue[pb.Hello] = asyncio.Queue()
        self.intervals: dict[str, Duration] = {}
        self.streams: asyncio.Queue[WorkerStream] = asyncio.Queue()
        self.all_streams: list[WorkerStream] = []

    async def Connect(  # type: ignore[override] # noqa: N802 - the name of the method on the wire
        self, requests: AsyncIterator[pb.ConnectRequest], context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ConnectResponse]:
        hello = (await anext(requests)).frames[0].hello
        if self.refuses is not None:
            self.refused.put_nowait(hello)
            await refuse(context, self.refuses, self.reason)
        stream = WorkerStream(hello, self.acks)
        self.all_streams.append(stream)
        self.streams.put_nowait(stream)
        welcome = pb.Welcome(held=hello.held, database_id="db", max_credit=1000, **self.intervals)
        yield pb.ConnectResponse(frames=[pb.ServerFrame(welcome=welcome)])
        reading = asyncio.create_task(self._read(stream, requests))
        try:
            while (frames := await stream.outgoing.get()) is not None:
                yield pb.ConnectResponse(frames=frames)
        finally:
            reading.cancel()

    async def _read(self, stream: WorkerStream, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        async for request in requests:
            await stream.take(request)
        stream.cut()


class FakeWorkflows(WorkflowServiceServicer):
    """Creates what it is asked for, and follows what is told with `change`."""

    def __init__(self) -> None:
        self.creates: list[wf.CreateInstancesRequest] = []
        self.events: list[wf.SendEventsRequest] = []
        self.calls: list[Any] = []
        self.watches: list[wf.WatchInstancesRequest] = []
        self.watchers: list[asyncio.Queue[wf.WatchInstancesResponse | None]] = []
        self.watched = asyncio.Condition()
        self.refuses_watchers: grpc.StatusCode | None = None
        self.refused_watchers: asyncio.Queue[None] = asyncio.Queue()
        self.refuse: Callable[[str], errors_pb2.ItemError | None] = lambda _id: None
        self.existing: set[str] = set()
        self.most_items = 100
        self.born_as, self.born_with = wf.INSTANCE_STATUS_QUEUED, 0  # status and revision of what is created
        self.instances: dict[str, wf.Instance] = {}

    async def CreateInstances(self, request: wf.CreateInstancesRequest, context: Any) -> wf.CreateInstancesResponse:  # noqa: N802
        self.creates.append(request)
        if len(request.items) > self.most_items:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE", {"limit": str(self.most_items)})
        return wf.CreateInstancesResponse(results=[self._create(item) for item in request.items])

    def _create(self, item: wf.CreateInstancesItem) -> wf.CreateInstancesResult:
        if error := self.refuse(item.instance_id):
            return wf.CreateInstancesResult(error=error)
        if item.instance_id in self.existing:
            return wf.CreateInstancesResult(skipped=True)
        named = item.instance_id or "made-up"
        created = wf.Instance(workflow=item.workflow, instance_id=named, status=self.born_as, revision=self.born_with)
        return wf.CreateInstancesResult(instance=created)

    async def SendEvents(self, request: wf.SendEventsRequest, context: Any) -> wf.SendEventsResponse:  # noqa: N802
        self.events.append(request)
        return wf.SendEventsResponse(results=[self._store(item) for item in request.items])

    def _store(self, item: wf.SendEventsItem) -> wf.SendEventsResult:
        if error := self.refuse(item.instance_id):
            return wf.SendEventsResult(error=error)
        return wf.SendEventsResult(stored=wf.SendEventResponse())

    async def CreateInstance(self, request: wf.CreateInstanceRequest, context: Any) -> wf.CreateInstanceResponse:  # noqa: N802
        self.calls.append(request)
        created = self.instances.get(request.instance_id) or wf.Instance(instance_id=request.instance_id)
        return wf.CreateInstanceResponse(instance=created)

    async def GetInstance(self, request: wf.GetInstanceRequest, context: Any) -> wf.GetInstanceResponse:  # noqa: N802
        if request.instance_id not in self.instances:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such instance")
        return wf.GetInstanceResponse(instance=self.instances[request.instance_id])

    async def PauseInstance(self, request: wf.PauseInstanceRequest, context: Any) -> wf.PauseInstanceResponse:  # noqa: N802
        self.calls.append(request)
        return wf.PauseInstanceResponse()

    async def RestartInstance(self, request: wf.RestartInstanceRequest, context: Any) -> wf.RestartInstanceResponse:  # noqa: N802
        self.calls.append(request)
        return wf.RestartInstanceResponse()

    async def ListInstances(self, request: wf.ListInstancesRequest, context: Any) -> wf.ListInstancesResponse:  # noqa: N802
        self.calls.append(wf.ListInstancesRequest.FromString(request.SerializeToString()))
        page = int(request.page_token or 0)
        found = [wf.Instance(instance_id=f"i{page}", status=99 if page else wf.INSTANCE_STATUS_PAUSED)]  # type: ignore[arg-type]
        return wf.ListInstancesResponse(instances=found, next_page_token="" if page else "1")

    async def GetHistory(self, request: wf.GetHistoryRequest, context: Any) -> wf.GetHistoryResponse:  # noqa: N802
        self.calls.append(wf.GetHistoryRequest.FromString(request.SerializeToString()))
        if not request.page_token:
            step = wf.Step(name="a", type=wf.STEP_TYPE_DO, status=wf.STEP_STATUS_COMPLETED, attempts=1)
            return wf.GetHistoryResponse(entries=[wf.HistoryEntry(step=step)], next_page_token="1", run_number=2)
        return wf.GetHistoryResponse(entries=[wf.HistoryEntry(event=wf.Event(event_id=1, type="e"))], run_number=2)

    async def WatchInstances(  # type: ignore[override] # noqa: N802
        self, requests: AsyncIterator[wf.WatchInstancesRequest], context: Any
    ) -> AsyncIterator[wf.WatchInstancesResponse]:
        if self.refuses_watchers is not None:
            self.refused_watchers.put_nowait(None)
            await refuse(context, self.refuses_watchers, reason="")
        outgoing: asyncio.Queue[wf.WatchInstancesResponse | None] = asyncio.Queue()
        self.watchers.append(outgoing)
        reading = asyncio.create_task(self._read(requests))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
        finally:
            self.watchers.remove(outgoing)
            reading.cancel()

    async def _read(self, requests: AsyncIterator[wf.WatchInstancesRequest]) -> None:
        async for request in requests:
            async with self.watched:
                self.watches.append(request)
                self.watched.notify_all()

    async def until_watched(self, messages: int, targets: int = 0) -> None:
        """Wait for so many messages of watchers, or for so many instances in them."""
        async with self.watched:
            await self.watched.wait_for(
                lambda: len(self.watches) >= messages and sum(len(request.add) for request in self.watches) >= targets
            )

    def change(self, *instances: wf.Instance, steps: tuple[wf.Step, ...] = ()) -> None:
        changes = [wf.InstanceChange(instance=instance, steps=steps) for instance in instances]
        self.watchers[-1].put_nowait(wf.WatchInstancesResponse(changes=changes))


@dataclass
class FakeServer:
    address: str
    workers: FakeWorkers
    workflows: FakeWorkflows
    dispatchers: FakeDispatchers
    hooks: FakeHooks
    transactions: FakeTransactions


@asynccontextmanager
async def fake_server(address: str = "127.0.0.1:0") -> AsyncIterator[FakeServer]:
    server = aio.server()
    workers, workflows, dispatchers = FakeWorkers(), FakeWorkflows(), FakeDispatchers()
    hooks, transactions = FakeHooks(), FakeTransactions()
    add_WorkerServiceServicer_to_server(workers, server)
    add_WorkflowServiceServicer_to_server(workflows, server)
    add_DispatcherServiceServicer_to_server(dispatchers, server)
    add_HookServiceServicer_to_server(hooks, server)
    add_TransactionServiceServicer_to_server(transactions, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield FakeServer(f"127.0.0.1:{port}", workers, workflows, dispatchers, hooks, transactions)
    finally:
        for stream in workers.all_streams:
            stream.cut()
        dispatchers.cut()
        await server.stop(None)
