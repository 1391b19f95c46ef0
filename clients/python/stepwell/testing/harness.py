"""Harness: an app, a worker for it and a clock to move, around one server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, overload
from uuid import uuid4

from grpc import StatusCode

from stepwell.apps import App
from stepwell.client.client import Client
from stepwell.durations import DurationLike, to_datetime, to_duration, to_seconds
from stepwell.errors import CallFailed
from stepwell.hooks.definition import HookDefinition
from stepwell.hooks.handle import Hook, TriggeredHook
from stepwell.retry import Retry
from stepwell.testing.servers import VirtualServer
from stepwell.v1 import clock_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell.v1.namespaces_pb2 import CreateNamespaceRequest
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.worker.worker import Worker
from stepwell.workflows.definition import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint
from stepwell.workflows.handle import Instance, Workflow
from stepwell.workflows.info import EventEntry, StepEntry

P = TypeVar("P")
R = TypeVar("R")

_SECONDS_PER_ADVANCE = 60.0  # more than the server takes before it answers that it has not arrived


class StillBusy(Exception):
    """Work was still executing when the harness's patience ended: a body that waits for something that never comes."""


class Harness:
    """Executes an app against a server whose clock a test moves: `async with Harness(app) as h:`.

    Without `address` it starts a server of its own. With `address` it joins one that was started with --virtual-clock;
    the namespace is created if it is missing. The clock is the server's: harnesses that share one move it together.

    With `cache=0` the worker forgets every run that suspends, so that each time it goes on is a replay. `patience` is
    how long, by real time, a move of the clock may take. `hangs_after` is how long, by real time, a body that executes
    without news is waited for; after that it is taken to hang, and the clock goes on to its timeout. Make it short to
    test timeouts; beyond 20 seconds a body is waited for as long as there is patience.
    """

    def __init__(
        self,
        app: App,
        *,
        address: str | None = None,
        namespace: str = "default",
        cache: int = 1000,
        patience: DurationLike = "60 seconds",
        hangs_after: DurationLike = "10 seconds",
    ) -> None:
        self.namespace = namespace
        self._app = app
        self._address = address
        self._cache = cache
        self._patience = to_seconds(patience)
        self._hangs_after = to_duration(hangs_after)
        self._stack = contextlib.AsyncExitStack()
        self._workers: list[Worker] = []

    @property
    def client(self) -> Client:
        """A client of the server, in the harness's namespace."""
        return self._client

    async def __aenter__(self) -> Harness:
        async with contextlib.AsyncExitStack() as stack:
            address = self._address or (await stack.enter_async_context(VirtualServer())).address
            self._client = await stack.enter_async_context(Client(address, namespace=self.namespace))
            self._clock = self._client.stub(ClockServiceStub)
            await self._prepare()
            stack.push_async_callback(self.stop_worker)
            await self.start_worker()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def now(self) -> datetime:
        """The server's time."""
        return to_datetime((await self._read_clock()).now)

    async def run_until_idle(self) -> None:
        """Return when everything that is due has been done: the rest waits for a time, an event or a call.

        A body that executes is waited for. A body that hangs (see `hangs_after`) counts as waiting for its timeout.
        """
        await self.advance(0)

    async def advance(self, duration: DurationLike) -> datetime:
        """Move the clock, stopping at every due time on the way until all that is due there is done; the time after it.

        StillBusy, which names what executes, if that takes longer than the harness's patience.
        """
        # Repeated under one request_id the call goes on to the same instant.
        request = pb.AdvanceClockRequest(
            by=to_duration(duration), request_id=uuid4().hex, hangs_after=self._hangs_after
        )
        ends = asyncio.get_running_loop().time() + self._patience
        while True:
            answer = await self._client.call(self._clock.AdvanceClock, request, _SECONDS_PER_ADVANCE)
            now = to_datetime(answer.now)
            if answer.arrived:
                return now
            if asyncio.get_running_loop().time() > ends:
                executing = ", ".join(answer.executing) or "something"
                raise StillBusy(f"{executing} still executes after {self._patience:g} seconds; the clock is at {now}")

    @overload
    async def start(
        self,
        workflow: type[WorkflowEntrypoint[P, R]] | WorkflowDefinition[P, R],
        params: P | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Instance[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        params: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Instance[Any]: ...
    async def start(
        self,
        workflow: AnyWorkflow | str,
        params: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Instance[Any]:
        """Create an instance, and let it come as far as it can without time passing."""
        accessor: Workflow[Any, Any] = self._client.workflow(workflow)
        instance = await accessor.create(id=id, params=params, labels=labels)
        await self.run_until_idle()
        return instance

    @overload
    async def trigger(
        self,
        hook: HookDefinition[P],
        payload: P | None = None,
        *,
        process_at: datetime | None = None,
        retry: Retry | None = None,
        id: str | None = None,
    ) -> TriggeredHook: ...
    @overload
    async def trigger(
        self,
        hook: str,
        payload: Any = None,
        *,
        process_at: datetime | None = None,
        retry: Retry | None = None,
        id: str | None = None,
    ) -> TriggeredHook: ...
    async def trigger(self, hook: HookDefinition[Any] | str, payload: Any = None, **options: Any) -> TriggeredHook:
        """Trigger a hook, and let it come as far as it can without time passing."""
        accessor: Hook[Any] = self._client.hook(hook)
        triggered = await accessor.trigger(payload, **options)
        await self.run_until_idle()
        return triggered

    async def send_event(self, instance: Instance[Any], type: str, payload: Any = None) -> None:
        """Send an event, and let what it wakes come as far as it can without time passing."""
        await instance.send_event(type, payload)
        await self.run_until_idle()

    async def steps(self, instance: Instance[Any], run_number: int | None = None) -> dict[str, StepEntry]:
        """The steps of a run by name, oldest first; of the current run if none is named."""
        history = await instance.history(run_number)
        return {entry.name: entry for entry in history if isinstance(entry, StepEntry)}

    async def events(self, instance: Instance[Any], run_number: int | None = None) -> list[EventEntry]:
        """The events of a run, oldest first; of the current run if none is named."""
        return [entry for entry in await instance.history(run_number) if isinstance(entry, EventEntry)]

    async def replace_worker(self, app: App | None = None) -> None:
        """Let the worker go, with all that it remembers, and start another, as a deployment does: with new code or not.

        Bodies that execute are cut short.
        """
        await self.stop_worker()
        await self.start_worker(app)

    async def start_worker(self, app: App | None = None) -> None:
        """Start a worker, in place of one that was stopped or beside it."""
        self._app = app or self._app
        worker = Worker(self._client, self._app, cache=self._cache, grace=0)
        self._workers.append(await worker.__aenter__())

    async def stop_worker(self) -> None:
        """Let all workers go. Nothing is executed until another one is started."""
        while self._workers:
            await self._workers.pop().__aexit__(None, None, None)

    async def crash_worker(self) -> None:
        """End all workers as if their processes had died: nothing is said, all that they remember is gone.

        Their tasks are handed out again after the server's reconnect grace, which counts in real time; on a server
        that the harness started that is at once.
        """
        while self._workers:
            await self._workers.pop()._close()

    async def _prepare(self) -> None:
        reading = await self._read_clock()
        if not reading.virtual:
            raise RuntimeError(f"the clock of {self._client.address} is real: start that server with --virtual-clock")
        if self.namespace == "default":
            return
        request = CreateNamespaceRequest(name=self.namespace, request_id=uuid4().hex)
        try:
            await self._client.call(self._client.stub(NamespaceServiceStub).CreateNamespace, request)
        except CallFailed as failure:
            if failure.code is not StatusCode.ALREADY_EXISTS:
                raise

    async def _read_clock(self) -> pb.GetClockResponse:
        return await self._client.call(self._clock.GetClock, pb.GetClockRequest())
