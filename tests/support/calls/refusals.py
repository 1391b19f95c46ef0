"""Refusals met on purpose: a server with a worker, and all that can be done to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from stepwell.errors import CallFailed, reason_name
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.errors_pb2 import ItemError
from stepwell_server.api.edge.access import Caller, Principal
from stepwell_server.domain.values.errors import Unauthenticated
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers
from tests.support.servers.policies import AsGranted, known_as
from tests.support.servers.servers import Served
from tests.support.workers.workers import HandWorker, Job, UnaryWorker

Told: TypeAlias = tuple[str, Mapping[str, str]]
"""A reason and its metadata."""


class NoStrangers(AsGranted):
    """A caller must say who it is."""

    async def authenticate(self, caller: Caller) -> Principal:
        """By the name that is said, if one is."""
        if "authorization" not in caller.metadata:
            raise Unauthenticated("say who you are")
        return await super().authenticate(caller)


@dataclass
class Stage:
    """A server with a worker that hosts the workflow "order" and the hook "note", and what a test can do to it."""

    start: Callable[..., Awaitable[Served]]
    hire_at: Callable[..., Awaitable[HandWorker]]
    patch: Callable[..., None]
    settings: dict[str, Any]

    async def open(self) -> None:
        """Start the server, and connect the worker."""
        self.server = await self.start(**self.settings)
        self.channel = self.server.channel
        self.flows, self.triggers = Flows(self.channel), Triggers(self.channel)
        metadata = known_as("worker", "*@*") if "policy" in self.settings else ()
        self.worker = await self.hire_at(self.server, hooks=("note",), credit=9, metadata=metadata)

    async def job(self) -> Job:
        """A run that the worker holds."""
        await self.flows.create("one")
        return await self.worker.take()

    async def caller(self) -> UnaryWorker:
        """A worker without a stream."""
        caller = UnaryWorker(self.channel, ("bill",))
        await caller.register()
        return caller

    async def hello(self, **changes: Any) -> Told:
        """What a worker hears that introduces itself like this."""
        worker = await self.hire_at(self.server, connect=False)
        with pytest.raises(CallFailed) as caught:
            await worker.connect(**changes)
        return caught.value.reason, caught.value.metadata

    async def frame(self, *frames: pb.WorkerFrame) -> Told:
        """What the worker hears of a run that it holds when it says this; the last is refused."""
        job = await self.job()
        sent = await job.send(*frames)
        return of_item((await job.answer(sent[-1].number)).refused)


def of_item(error: ItemError) -> Told:
    """What an item of a batch, or a frame, was told."""
    return reason_name(error.reason), error.metadata


def of_stream(worker: HandWorker) -> Told:
    """How a stream ended."""
    assert worker.end is not None
    return worker.end.reason, worker.end.metadata
