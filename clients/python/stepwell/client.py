"""Client: starts and manages instances on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from grpc import aio

from stepwell.batching import Coalescer
from stepwell.channel import open_channel
from stepwell.durations import DurationLike, to_seconds
from stepwell.errors import failure_of
from stepwell.instances import Workflow
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.watches import Watches
from stepwell.workflows import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint, definition_of

if TYPE_CHECKING:
    from stepwell.v1.workflows_pb2_grpc import WorkflowServiceAsyncStub

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """A connection to a server, for one namespace: `async with Client("127.0.0.1:7350") as client:`.

    `timeout` is the deadline of each call. Concurrent `create` and `send_event` calls travel together, and all
    `result()` and `watch()` calls share one stream.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7350",
        *,
        namespace: str = "default",
        tls: bool = False,
        tls_ca: str | Path | None = None,
        timeout: DurationLike = "30 seconds",
    ) -> None:
        self.address = address
        self.namespace = namespace
        self.timeout = to_seconds(timeout)
        self._tls = tls
        self._tls_ca = None if tls_ca is None else Path(tls_ca)
        self._channel: aio.Channel | None = None

    async def __aenter__(self) -> Client:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> None:
        self._channel = open_channel(self.address, tls=self._tls, tls_ca=self._tls_ca)
        self._stub = WorkflowServiceStub(self._channel)
        self._creates = Coalescer(self._send_creates)
        self._events = Coalescer(self._send_events)
        self._watches = Watches(self._stub, self.namespace)

    async def close(self) -> None:
        """End all streams and the connection."""
        if self._channel is None:
            return
        channel, self._channel = self._channel, None
        await asyncio.gather(self._creates.close(), self._events.close(), self._watches.close())
        await channel.close()

    @overload
    def workflow(self, workflow: type[WorkflowEntrypoint[P, R]]) -> Workflow[P, R]: ...
    @overload
    def workflow(self, workflow: WorkflowDefinition[P, R]) -> Workflow[P, R]: ...
    @overload
    def workflow(self, workflow: str) -> Workflow[Any, Any]: ...
    def workflow(self, workflow: AnyWorkflow | str) -> Workflow[Any, Any]:
        """Access to a workflow: by its definition, with its types, or by its name, with plain JSON."""
        if isinstance(workflow, str):
            return Workflow(self, workflow, None)
        definition = definition_of(workflow)
        return Workflow(self, definition.name, definition.result_type)

    # For the accessors and the worker.

    @property
    def channel(self) -> aio.Channel:
        """The open channel. RuntimeError outside of `async with`."""
        if self._channel is None:
            raise RuntimeError("the client is not open: use `async with Client(...) as client:`")
        return self._channel

    @property
    def stub(self) -> WorkflowServiceAsyncStub:
        """The generated stub, for calls that have no method here."""
        assert self.channel is not None
        return self._stub

    @property
    def watches(self) -> Watches:
        """The stream that follows instances."""
        assert self.channel is not None
        return self._watches

    async def call(self, calling: Awaitable[T]) -> T:
        """The answer of a call; CallFailed if it was refused."""
        try:
            return await calling
        except aio.AioRpcError as error:
            raise failure_of(error) from None

    async def create_coalesced(self, item: pb.CreateInstancesItem) -> pb.CreateInstancesResult:
        """Create one instance, together with others that are asked for meanwhile."""
        assert self.channel is not None
        return await self._creates.submit(item)

    async def send_coalesced(self, item: pb.SendEventsItem) -> pb.SendEventsResult:
        """Send one event, together with others that are sent meanwhile."""
        assert self.channel is not None
        return await self._events.submit(item)

    async def _send_creates(self, items: list[pb.CreateInstancesItem]) -> Sequence[pb.CreateInstancesResult]:
        request = pb.CreateInstancesRequest(namespace=self.namespace, items=items, on_existing=pb.ON_EXISTING_ERROR)
        answer = await self.call(self._stub.CreateInstances(request, timeout=self.timeout))
        return answer.results

    async def _send_events(self, items: list[pb.SendEventsItem]) -> Sequence[pb.SendEventsResult]:
        request = pb.SendEventsRequest(namespace=self.namespace, items=items)
        answer = await self.call(self._stub.SendEvents(request, timeout=self.timeout))
        return answer.results
