"""Client: starts and manages instances and hooks on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from google.protobuf.message import Message
from grpc import aio

from stepwell import checks
from stepwell.calls import AnswerT, Batch, ItemT, ResultT, StubT
from stepwell.client.batching import Coalescer, MostItems, in_batches, is_passing, repeated
from stepwell.client.channel import open_channel
from stepwell.client.credentials import Token, authorised
from stepwell.client.transactions import Transaction
from stepwell.client.watches import Follower, Watches
from stepwell.durations import DurationLike, to_seconds
from stepwell.errors import failure_of
from stepwell.hooks.definition import HookDefinition
from stepwell.hooks.handle import Hook, hooks_of, targets_of
from stepwell.hooks.info import HookTarget
from stepwell.tuning import DEFAULT, Tuning
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.workflows.definition import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint, workflow_of
from stepwell.workflows.handle import Workflow

P = TypeVar("P")
R = TypeVar("R")


class Client:
    """A connection to a server, for one namespace: `async with Client("127.0.0.1:7350") as client:`.

    `timeout` is the deadline of each call. A server that is away or too busy is asked again until then, or only for as
    long as `patience` lasts: for callers that would rather hear soon that there is none. Concurrent `create`,
    `send_event` and `trigger` calls travel together, and all `result()` and `watch()` calls share one stream. `token`
    goes with every call and stream, as `authorization: Bearer TOKEN`: a text, or a function that is called each time.
    `tuning` is for tests of the SDK.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7350",
        *,
        namespace: str = "default",
        tls: bool = False,
        tls_ca: str | Path | None = None,
        token: Token | None = None,
        timeout: DurationLike = "30 seconds",
        patience: DurationLike | None = None,
        tuning: Tuning = DEFAULT,
    ) -> None:
        self.address = checks.text("address", address)
        self.namespace = checks.text("namespace", namespace)
        self.timeout = to_seconds(timeout)
        self.tuning = tuning
        self._patience = None if patience is None else to_seconds(patience)
        self._tls = tls
        self._tls_ca = None if tls_ca is None else Path(tls_ca)
        self._token = token
        self._most = MostItems()
        self._channel: aio.Channel | None = None
        self._stubs: dict[Callable[[aio.Channel], Any], Any] = {}
        self._coalescers: dict[Batch[Any, Any], Coalescer[Any, Any]] = {}

    async def __aenter__(self) -> Client:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> None:
        opened = open_channel(
            self.address, tls=self._tls, tls_ca=self._tls_ca, patience=self._patience, tuning=self.tuning
        )
        self._channel = authorised(opened, self._token)
        self._stubs, self._coalescers = {}, {}
        self._watches = Watches(self.stub(WorkflowServiceStub), self.namespace, self.address, self.tuning)

    async def close(self) -> None:
        """End all streams and the connection. Calls that still wait fail, or are cancelled."""
        if self._channel is None:
            return
        channel, self._channel = self._channel, None
        coalescers = self._coalescers.values()
        await asyncio.gather(*(coalescer.close() for coalescer in coalescers), self._watches.close(_not_open()))
        await channel.close()

    @overload
    def workflow(self, workflow: type[WorkflowEntrypoint[P, R]]) -> Workflow[P, R]: ...
    @overload
    def workflow(self, workflow: WorkflowDefinition[P, R]) -> Workflow[P, R]: ...
    @overload
    def workflow(self, workflow: str) -> Workflow[Any, Any]: ...
    def workflow(self, workflow: AnyWorkflow | str) -> Workflow[Any, Any]:
        """Access to a workflow: by its definition, with its types, or by its name, with plain JSON."""
        return workflow_of(self, workflow)

    @overload
    def hook(self, hook: HookDefinition[P]) -> Hook[P]: ...
    @overload
    def hook(self, hook: str) -> Hook[Any]: ...
    def hook(self, hook: HookDefinition[Any] | str) -> Hook[Any]:
        """Access to the hooks of a name: by the definition, with its type and policy, or by the name alone."""
        return hooks_of(self, hook)

    def hook_targets(self) -> AsyncIterator[HookTarget]:
        """The webhooks of the namespace by the name of their hooks, without their secrets."""
        return targets_of(self)

    def transaction(self) -> Transaction:
        """Several operations as one, all or nothing: `async with client.transaction() as tx:`."""
        return Transaction(self)

    # For the accessors and the worker.

    @property
    def channel(self) -> aio.Channel:
        """The open channel. RuntimeError outside of `async with`."""
        if self._channel is None:
            raise _not_open()
        return self._channel

    def stub(self, service: Callable[[aio.Channel], StubT]) -> StubT:
        """The generated stub of a service, for calls that have no method here."""
        channel = self.channel
        if service not in self._stubs:
            self._stubs[service] = service(channel)
        stub: StubT = self._stubs[service]
        return stub

    async def call(
        self, method: Callable[..., Awaitable[AnswerT]], request: Message, seconds: float | None = None
    ) -> AnswerT:
        """The answer of a call, within so many seconds or the client's timeout. CallFailed if it was refused."""
        try:
            return await method(request, timeout=self.timeout if seconds is None else seconds)
        except aio.AioRpcError as error:
            raise failure_of(error, self.address) from None

    async def submit(self, batch: Batch[ItemT, ResultT], item: ItemT) -> ResultT:
        """The answer to one item, which travels with others that are submitted meanwhile."""
        deadline = asyncio.get_running_loop().time() + self.timeout
        result = await self._coalescer(batch).submit(item, self.timeout)
        if not is_passing(result):
            return result

        async def send(items: Sequence[ItemT], seconds: float) -> list[ResultT]:
            return [await self._coalescer(batch).submit(item, seconds) for item in items]

        (result,) = await repeated(send, [item], [result], deadline, self.tuning)
        return result

    async def submit_all(self, batch: Batch[ItemT, ResultT], items: Sequence[ItemT]) -> list[ResultT]:
        """The answers to many items, in as few calls as the server's bounds allow."""
        return await in_batches(partial(batch, self), items, self.timeout, self._most, self.tuning)

    def follow(
        self, workflow: str, instance_id: str, *, steps: bool = False, known_revision: int = 0
    ) -> AbstractContextManager[Follower]:
        """Follow an instance inside a `with` block, on the stream that all such calls share."""
        self._check_open()
        return self._watches.follow(workflow, instance_id, steps=steps, known_revision=known_revision)

    def _coalescer(self, batch: Batch[ItemT, ResultT]) -> Coalescer[ItemT, ResultT]:
        self._check_open()
        if batch not in self._coalescers:
            self._coalescers[batch] = Coalescer(partial(batch, self), self._most)
        return self._coalescers[batch]

    def _check_open(self) -> None:
        if self._channel is None:
            raise _not_open()


def _not_open() -> RuntimeError:
    return RuntimeError("the client is not open: use `async with Client(...) as client:`")
