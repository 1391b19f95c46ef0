"""Client: starts and manages instances and hooks on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from grpc import aio

from stepwell import checks
from stepwell.client.batching import Coalescer, ItemT, MostItems, ResultT, until_available
from stepwell.client.channel import open_channel
from stepwell.client.credentials import Token, authorised
from stepwell.client.transactions import Transaction
from stepwell.client.watches import Watches
from stepwell.durations import DurationLike, to_seconds
from stepwell.errors import failure_of
from stepwell.hooks.definition import HookDefinition
from stepwell.hooks.handle import Hook
from stepwell.v1 import hooks_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.workflows.definition import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint, definition_of
from stepwell.workflows.handle import Workflow
from stepwell.workflows.info import HookTarget, hook_target

if TYPE_CHECKING:
    from stepwell.v1.hooks_pb2_grpc import HookServiceAsyncStub
    from stepwell.v1.transactions_pb2_grpc import TransactionServiceAsyncStub
    from stepwell.v1.workflows_pb2_grpc import WorkflowServiceAsyncStub

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """A connection to a server, for one namespace: `async with Client("127.0.0.1:7350") as client:`.

    `timeout` is the deadline of each call. A server that is away or too busy is asked again until then, or only for as
    long as `patience` lasts: for callers that would rather hear soon that there is none. Concurrent `create`,
    `send_event` and `trigger` calls travel together, and all `result()` and `watch()` calls share one stream. `token`
    goes with every call and stream, as `authorization: Bearer TOKEN`: a text, or a function that is called each time.
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
    ) -> None:
        self.address = checks.text("address", address)
        self.namespace = checks.text("namespace", namespace)
        self.most_items = MostItems()
        self.timeout = to_seconds(timeout)
        self._patience = None if patience is None else to_seconds(patience)
        self._tls = tls
        self._tls_ca = None if tls_ca is None else Path(tls_ca)
        self._token = token
        self._channel: aio.Channel | None = None

    async def __aenter__(self) -> Client:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> None:
        opened = open_channel(self.address, tls=self._tls, tls_ca=self._tls_ca, patience=self._patience)
        self._channel = authorised(opened, self._token)
        self._stub = WorkflowServiceStub(self._channel)
        self._hook_stub = HookServiceStub(self._channel)
        self._transaction_stub = TransactionServiceStub(self._channel)
        self._creates = Coalescer(self._send_creates, self.most_items)
        self._events = Coalescer(self._send_events, self.most_items)
        self._triggers = Coalescer(self._send_triggers, self.most_items)
        self._watches = Watches(self._stub, self.namespace, self.address)

    async def close(self) -> None:
        """End all streams and the connection. Calls that still wait fail, or are cancelled."""
        if self._channel is None:
            return
        channel, self._channel = self._channel, None
        coalescers = (self._creates, self._events, self._triggers)
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
        if isinstance(workflow, str):
            return Workflow(self, workflow, None)
        definition = definition_of(workflow)
        return Workflow(self, definition.name, definition.result_type)

    @overload
    def hook(self, hook: HookDefinition[P]) -> Hook[P]: ...
    @overload
    def hook(self, hook: str) -> Hook[Any]: ...
    def hook(self, hook: HookDefinition[Any] | str) -> Hook[Any]:
        """Access to the hooks of a name: by the definition, with its type and policy, or by the name alone."""
        if isinstance(hook, str):
            return Hook(self, hook)
        if not isinstance(hook, HookDefinition):
            raise TypeError(f"a hook is made by @hook(...), or the name of one, not {hook!r}")
        return Hook(self, hook.name, hook.retry)

    async def hook_targets(self) -> AsyncIterator[HookTarget]:
        """The webhooks of the namespace by the name of their hooks, without their secrets."""
        request = hooks_pb2.ListHookTargetsRequest(namespace=self.namespace)
        while True:
            page = await self.call(self.hook_stub.ListHookTargets(request, timeout=self.timeout))
            for target in page.targets:
                yield hook_target(target)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

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

    @property
    def stub(self) -> WorkflowServiceAsyncStub:
        """The generated stub, for calls that have no method here."""
        self._check_open()
        return self._stub

    @property
    def hook_stub(self) -> HookServiceAsyncStub:
        """The same for hooks."""
        self._check_open()
        return self._hook_stub

    @property
    def transaction_stub(self) -> TransactionServiceAsyncStub:
        """The same for transactions."""
        self._check_open()
        return self._transaction_stub

    @property
    def watches(self) -> Watches:
        """The stream that follows instances."""
        self._check_open()
        return self._watches

    def _check_open(self) -> None:
        if self._channel is None:
            raise _not_open()

    async def call(self, calling: Awaitable[T]) -> T:
        """The answer of a call; CallFailed if it was refused."""
        try:
            return await calling
        except aio.AioRpcError as error:
            raise failure_of(error, self.address) from None

    async def create_coalesced(self, item: pb.CreateInstancesItem) -> pb.CreateInstancesResult:
        """Create one instance, together with others that are asked for meanwhile."""
        self._check_open()
        return await self._submit(self._creates, item)

    async def send_coalesced(self, item: pb.SendEventsItem) -> pb.SendEventsResult:
        """Send one event, together with others that are sent meanwhile."""
        self._check_open()
        return await self._submit(self._events, item)

    async def trigger_coalesced(self, item: hooks_pb2.TriggerHooksItem) -> hooks_pb2.TriggerHooksResult:
        """Store one hook, together with others that are triggered meanwhile."""
        self._check_open()
        return await self._submit(self._triggers, item)

    async def _submit(self, coalescer: Coalescer[ItemT, ResultT], item: ItemT) -> ResultT:
        async def send(items: list[ItemT], seconds: float) -> list[ResultT]:
            self._check_open()  # it may be another try
            return [await coalescer.submit(one, seconds) for one in items]

        (result,) = await until_available(send, [item], self.timeout)
        return result

    async def _send_triggers(
        self, items: list[hooks_pb2.TriggerHooksItem], seconds: float
    ) -> Sequence[hooks_pb2.TriggerHooksResult]:
        request = hooks_pb2.TriggerHooksRequest(namespace=self.namespace, items=items)
        answer = await self.call(self._hook_stub.TriggerHooks(request, timeout=seconds))
        return answer.results

    async def _send_creates(
        self, items: list[pb.CreateInstancesItem], seconds: float
    ) -> Sequence[pb.CreateInstancesResult]:
        request = pb.CreateInstancesRequest(namespace=self.namespace, items=items, on_existing=pb.ON_EXISTING_ERROR)
        answer = await self.call(self._stub.CreateInstances(request, timeout=seconds))
        return answer.results

    async def _send_events(self, items: list[pb.SendEventsItem], seconds: float) -> Sequence[pb.SendEventsResult]:
        request = pb.SendEventsRequest(namespace=self.namespace, items=items)
        answer = await self.call(self._stub.SendEvents(request, timeout=seconds))
        return answer.results


def _not_open() -> RuntimeError:
    return RuntimeError("the client is not open: use `async with Client(...) as client:`")
