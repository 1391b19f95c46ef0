"""DispatcherService in the words of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from grpc import aio

from stepwell.errors import CallFailed, failure_of
from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1 import workers_pb2
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from tests.support.calls.triggers import at
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served
from tests.support.workers.frames import seconds

WORKFLOW, HOOK = workers_pb2.HANDLER_KIND_WORKFLOW, workers_pb2.HANDLER_KIND_HOOK


@dataclass
class Sidecar:
    """A dispatcher that is driven by hand."""

    channel: aio.Channel
    namespace: str = ""

    @property
    def stub(self) -> Any:
        """The service."""
        return DispatcherServiceStub(self.channel)

    async def ask(self, **wanted: Any) -> pb.GetNextWakeResponse:
        """The whole answer to what the next wake is."""
        request = pb.GetNextWakeRequest(namespace=self.namespace, filter=pb.WakeFilter(**wanted))
        answer: pb.GetNextWakeResponse = await self.stub.GetNextWake(request)
        return answer

    async def next_wake(self, **wanted: Any) -> float | None:
        """When something can be claimed, in seconds. None: nothing waits."""
        return wake_at((await self.ask(**wanted)).next_wake)

    async def is_due(self, **wanted: Any) -> bool:
        """Whether something can be claimed now."""
        return is_due(await self.ask(**wanted))

    async def unserved(self, **wanted: Any) -> dict[str, float]:
        """Names without a worker that have something due, and since when."""
        return unserved((await self.ask(**wanted)).next_wake)

    async def process(
        self, max_tasks: int = 0, *, max_steps: int = 0, wait: float = 0.0, **wanted: Any
    ) -> pb.ProcessResponse:
        """Have what is due handed out."""
        request = pb.ProcessRequest(
            namespace=self.namespace, filter=pb.WakeFilter(**wanted), max_tasks=max_tasks, max_steps=max_steps
        )
        if wait:
            request.wait.CopyFrom(seconds(wait))
        answer: pb.ProcessResponse = await self.stub.Process(request)
        return answer

    @asynccontextmanager
    async def follow(self, **wanted: Any) -> AsyncIterator[Follower]:
        """Follow the next wake, until the end of the block."""
        request = pb.WakeStreamRequest(namespace=self.namespace, filter=pb.WakeFilter(**wanted))
        follower = Follower(self.stub.WakeStream(request))
        reading = asyncio.create_task(follower.read())
        try:
            yield follower
        finally:
            follower.call.cancel()
            await reading


@dataclass(eq=False)
class Follower:
    """Somebody who reads a WakeStream as fast as it comes."""

    call: Any
    messages: list[pb.WakeStreamResponse] = field(default_factory=list)
    end: CallFailed | None = None
    """Why the stream ended, if it did not end well."""
    is_over: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Take in all that comes."""
        try:
            while (message := await self.call.read()) is not aio.EOF:
                self.messages.append(message)
                self._arrived.set()
        except aio.AioRpcError as error:
            self.end = failure_of(error)
        except asyncio.CancelledError:
            pass
        self.is_over = True
        self._arrived.set()

    async def until(self, condition: Callable[[pb.WakeStreamResponse], object]) -> pb.WakeStreamResponse:
        """The newest message, once it is as it should be."""
        await self._until(lambda: self.is_over or (bool(self.messages) and bool(condition(self.messages[-1]))))
        if not self.messages or not condition(self.messages[-1]):
            raise self.end or AssertionError("the stream ended")
        return self.messages[-1]

    async def first(self) -> pb.WakeStreamResponse:
        """The first message."""
        await self.until(lambda message: True)
        return self.messages[0]

    async def until_over(self) -> CallFailed | None:
        """Wait for the end. None: it ended well."""
        await self._until(lambda: self.is_over)
        return self.end

    async def _until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"it did not come; the last was {self.messages[-1:]}") from None


def wake_at(wake: pb.NextWake) -> float | None:
    """When something can be claimed, in seconds. None: nothing waits."""
    return at(wake.wake_at) if wake.HasField("wake_at") else None


def is_due(answer: pb.GetNextWakeResponse | pb.WakeStreamResponse | pb.ProcessResponse) -> bool:
    """Whether something can be claimed by the time of the answer."""
    wake = wake_at(answer.next_wake)
    return wake is not None and wake <= at(answer.now)


def waits(answer: pb.GetNextWakeResponse | pb.WakeStreamResponse | pb.ProcessResponse) -> bool:
    """Whether anything waits."""
    return answer.next_wake.HasField("wake_at")


def unserved(wake: pb.NextWake) -> dict[str, float]:
    """Names without a worker that have something due, and since when."""
    return {one.name: at(one.due_at) for one in wake.unserved}


async def until_settled(served: Served) -> None:
    """Return once the database has been asked about all that changed, and nothing more has."""
    bus = served.app.parts.replica.bus
    async with asyncio.timeout(PATIENCE):
        number = -1
        while bus.notes.are_waiting or number != bus.number:
            number = bus.number
            await asyncio.sleep(0.2)
