"""Worker: hosts workflows and hooks, and executes them for a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from stepwell.apps import App
from stepwell.client.client import Client
from stepwell.clocks import Clock, LoopClock, sleep
from stepwell.durations import DurationLike, to_seconds
from stepwell.hooks.definition import HookDefinition
from stepwell.v1 import workers_pb2 as pb
from stepwell.version import __version__
from stepwell.worker.connection import Connection
from stepwell.worker.dialogue import Dialogue
from stepwell.worker.held_work import HeldWork
from stepwell.worker.leases import CACHE, CACHE_BYTES, Capacity
from stepwell.worker.threads import ThreadPool
from stepwell.workflows.definition import AnyWorkflow

PROTOCOL_VERSION = 1

_SECONDS_TO_LEAVE = 2.0


class Worker:
    """Hosts what an app has: `async with Worker(client, app):`, or `await Worker(client, app).run()`.

    In the `with` block the worker is registered and takes tasks, at most `max_tasks` at a time. Leaving it, executing
    functions get `grace` to end; what then still executes goes to another worker. If the server would not have it any
    more, leaving raises why, unless the block has raised something itself. Functions that are not async run in
    `threads` threads. Up to `cache` suspended runs stay in memory, so that they go on without a replay, as long as what
    they keep of users' data is at most `cache_bytes`.
    """

    def __init__(
        self,
        client: Client,
        app: App | None = None,
        *,
        workflows: Sequence[AnyWorkflow] = (),
        hooks: Sequence[HookDefinition[Any]] = (),
        max_tasks: int = 500,
        threads: int = 32,
        cache: int = CACHE,
        cache_bytes: int = CACHE_BYTES,
        worker_id: str | None = None,
        grace: DurationLike = "10 seconds",
        connect_timeout: DurationLike = "30 seconds",
        clock: Clock | None = None,
    ) -> None:
        given = app or App()
        self.app = replace(given, workflows=[*given.workflows, *workflows], hooks=[*given.hooks, *hooks])
        if max_tasks < 1 or threads < 1 or cache < 0 or cache_bytes < 0:
            raise ValueError("max_tasks and threads are at least 1, cache and cache_bytes at least 0")
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}"
        self._client = client
        self._capacity = Capacity(max_tasks, cache, cache_bytes)
        self._threads = threads
        self._grace = to_seconds(grace)
        self._connect_timeout = to_seconds(connect_timeout)
        self._clock = clock
        self._session_id = secrets.token_hex(16)
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Worker:
        self._open()
        try:
            await self._registered()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()
        assert self._serving is not None
        if error is None and not self._serving.cancelled():
            self._serving.result()  # raises why the worker ended before it was left

    async def run(self) -> None:
        """Work until cancelled, through every outage; then leave as at the end of a `with` block."""
        self._open()
        assert self._serving is not None
        try:
            await asyncio.shield(self._serving)
        finally:
            await self._leave()

    async def ended(self, idle: DurationLike | None = None) -> None:
        """Wait until the worker ends by itself, because the server will never take it; CallFailed says why.

        With `idle`, also return when it has held no task for so long: for workers that run only while there is work.
        """
        assert self._serving is not None
        if idle is None:
            await asyncio.shield(self._serving)
            return
        resting = asyncio.create_task(self._rested(to_seconds(idle)))
        try:
            await asyncio.wait({self._serving, resting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            resting.cancel()
        if self._serving.done():
            await self._serving

    def _open(self) -> None:
        if self._serving is not None:
            raise RuntimeError("a Worker works once: make another one")
        clock = self._clock or LoopClock()
        self._pool = ThreadPool(self._threads)
        self._held = HeldWork(self.app, self._client, self._pool, clock, self._capacity)
        self._connection = Connection(self._client, Dialogue(self._held), self._hello)
        self._serving = asyncio.create_task(self._connection.serve())

    async def _leave(self) -> None:
        try:
            await self._drain()
        finally:
            await self._close()

    async def _registered(self) -> None:
        """Wait until the server has stored what this worker hosts."""
        assert self._serving is not None
        welcome = asyncio.create_task(self._connection.is_welcome.wait())
        try:
            waits: set[asyncio.Task[Any]] = {welcome, self._serving}
            await asyncio.wait(waits, timeout=self._connect_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            welcome.cancel()
        if self._serving.done():
            await self._serving
        if not self._connection.is_welcome.is_set():
            raise self._connection.last_failure or TimeoutError("the server did not answer")

    async def _rested(self, seconds: float) -> None:
        while (left := seconds - self._held.leases.idle_for()) > 0:
            await sleep(self._held.clock, left)

    async def _drain(self) -> None:
        """Let executing bodies end and be saved, for as long as the grace lasts, and say Goodbye."""
        assert self._serving is not None
        self._held.drain()
        if not self._serving.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await self._held.quiet.wait()
        self._held.name_bodies()
        self._connection.leave()
        await asyncio.wait({self._serving}, timeout=_SECONDS_TO_LEAVE)

    async def _close(self) -> None:
        assert self._serving is not None
        self._serving.cancel()
        await asyncio.wait({self._serving})
        await self._held.close()
        self._pool.close()
        if not self._serving.cancelled():
            self._serving.exception()  # which counts as seen: a caller that waits for it, or leaves the block, is told

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            worker_id=self.worker_id,
            session_id=self._session_id,
            sdk=f"stepwell-python/{__version__}",
            protocol_version=PROTOCOL_VERSION,
            namespace=self._client.namespace,
            handlers=[definition.to_handler() for definition in self.app.definitions.values()],
            held=self._held.leases.named(),
        )
