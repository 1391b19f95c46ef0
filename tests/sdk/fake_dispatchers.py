"""DispatcherService as a test wants it: one next wake, told to everybody who asks or follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc

from stepwell.durations import to_timestamp
from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceServicer
from stepwell.v1.frames_pb2 import HANDLER_KIND_WORKFLOW


class FakeDispatchers(DispatcherServiceServicer):
    """Its clock is a year behind: nobody may compare it with another one."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC) - timedelta(days=365)
        self.wake_in: float | None = None
        self.number = 1
        self.replica_id = "r1"
        self.unserved: tuple[str, ...] = ()
        self.handed_out = 0
        self.processed = 0
        self.requests: list[Any] = []
        self.refuses: grpc.StatusCode | None = None
        self.refuses_streams: grpc.StatusCode | None = None
        self.is_draining = False
        self.streams: list[asyncio.Queue[bool]] = []
        """Of each open stream: True for something to say, False for an end."""

    def change(self, wake_in: float | None, *unserved: str) -> None:
        """Another next wake, so many seconds from now, which is told to all streams."""
        self.wake_in, self.unserved = wake_in, unserved
        self.number += 1
        self.tell()

    def tell(self) -> None:
        for stream in self.streams:
            stream.put_nowait(True)

    def cut(self) -> None:
        """End all streams."""
        for stream in self.streams:
            stream.put_nowait(False)

    def passes(self) -> int:
        return sum(isinstance(request, pb.ProcessRequest) for request in self.requests)

    async def GetNextWake(self, request: pb.GetNextWakeRequest, context: Any) -> pb.GetNextWakeResponse:  # noqa: N802
        self.requests.append(request)
        await self._refuse(self.refuses, context)
        return pb.GetNextWakeResponse(next_wake=self._next_wake(), now=to_timestamp(self.now))

    async def Process(self, request: pb.ProcessRequest, context: Any) -> pb.ProcessResponse:  # noqa: N802
        self.requests.append(request)
        await self._refuse(self.refuses, context)
        if self.handed_out:
            self.change(None)
        return pb.ProcessResponse(
            handed_out=self.handed_out,
            processed=self.processed,
            next_wake=self._next_wake(),
            now=to_timestamp(self.now),
        )

    async def WakeStream(  # type: ignore[override] # noqa: N802
        self, request: pb.WakeStreamRequest, context: Any
    ) -> AsyncIterator[pb.WakeStreamResponse]:
        self.requests.append(request)
        await self._refuse(self.refuses_streams, context)
        stream: asyncio.Queue[bool] = asyncio.Queue()
        stream.put_nowait(True)
        self.streams.append(stream)
        try:
            while await stream.get():
                yield pb.WakeStreamResponse(
                    next_wake=self._next_wake(), now=to_timestamp(self.now), draining=self.is_draining
                )
        finally:
            self.streams.remove(stream)

    async def _refuse(self, code: grpc.StatusCode | None, context: Any) -> None:
        if code is not None:
            await context.abort(code, "not now")

    def _next_wake(self) -> pb.NextWake:
        wake = pb.NextWake(number=self.number, replica_id=self.replica_id)
        if self.wake_in is not None:
            wake.wake_at.CopyFrom(to_timestamp(self.now + timedelta(seconds=self.wake_in)))
        for name in self.unserved:
            wake.unserved.add(kind=HANDLER_KIND_WORKFLOW, name=name, due_at=to_timestamp(self.now))
        return wake
