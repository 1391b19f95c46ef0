"""The worker's stream: everything that is ready goes in one message, and a stream that is lost is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc import aio

from stepwell.backoff import Reconnects
from stepwell.client.client import Client
from stepwell.clocks import Timer
from stepwell.errors import CallFailed, failure_of
from stepwell.logs import ERROR, INFO, WARNING, log
from stepwell.packing import packed
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.worker.dialogue import Dialogue

_MESSAGE_FRAMES = 1000
"""Frames of one message, and step bodies that begin with them."""
_WELCOME_SECONDS = 10.0
_DRAIN_SECONDS = 2.0
_SILENT_INTERVALS = 3
_BEATS_PER_INTERVAL = 4
_STOOD_STILL = "this process stood still; what was sent to it meanwhile may be others' by now"
_GAVE_UP = "this worker gave up all that it held and could not renew, which the server does not know"


class Connection:
    """Keeps a stream open for a worker's dialogue with the server, until it is closed."""

    def __init__(self, client: Client, dialogue: Dialogue, hello: Callable[[], pb.Hello]) -> None:
        self.is_welcome = asyncio.Event()
        self.last_failure: CallFailed | None = None
        self._stub = client.stub(WorkerServiceStub)
        self._address = client.address
        self._dialogue = dialogue
        self._held = dialogue.held
        self._hello = hello
        self._has_news = asyncio.Event()
        self._call: Any = None
        self._reconnects = Reconnects()
        self._heard_at = 0.0
        self._ticked_at = 0.0
        self._ticks = 0
        self._timer: Timer | None = None
        self._is_leaving = False
        self._is_drained = False  # the server goes away: the stream is closed after what is ready
        self._given_up = ""  # why this side ended the stream
        dialogue.held.outbox.wake = self._has_news.set
        dialogue.reconnect = self._reconnect

    async def serve(self) -> None:
        """Connect, and connect again, until `leave`. CallFailed if the server will never take this worker."""
        self._next_tick()
        try:
            while not self._is_leaving:
                failure = await self._stream()
                self._dialogue.disconnected()
                if failure is not None:
                    self.last_failure = failure
                    log(WARNING, "stream_lost code=%s: %s", failure.code.name, failure)
                    if self._reconnects.are_pointless_after(failure):
                        log(ERROR, "worker_refused: it takes no more tasks")
                        raise failure
                if failure is not None or self._is_drained:
                    await asyncio.sleep(self._reconnects.next_pause())
        except Exception:
            self._held.drop_everything()  # its leases are not renewed any more
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def leave(self) -> None:
        """Say Goodbye after everything that is ready, and end the stream."""
        self._is_leaving = True
        self._has_news.set()

    async def _stream(self) -> CallFailed | None:
        """One stream, from Hello to its end. None if it was meant to end."""
        call = self._call = self._stub.Connect()
        self._heard_at = self._ticked_at = self._held.clock.now()
        self._given_up, self._is_drained = "", False
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                try:
                    return await self._read(call)
                finally:
                    writer.cancel()
        finally:
            self._call = None
            call.cancel()

    async def _read(self, call: Any) -> CallFailed | None:
        try:
            async with asyncio.timeout(_WELCOME_SECONDS) as limit:
                while (message := await call.read()) is not aio.EOF:
                    self._heard_at = self._held.clock.now()
                    if self._given_up or self._has_stood_still():
                        return CallFailed(grpc.StatusCode.UNAVAILABLE, self._given_up or _STOOD_STILL)
                    if not self._receive(message):
                        return None
                    closes_at = asyncio.get_running_loop().time() + _DRAIN_SECONDS
                    limit.reschedule(closes_at if self._is_drained else None)
        except aio.AioRpcError as error:
            return None if self._is_drained else failure_of(error, self._address)
        except asyncio.CancelledError:
            if not self._given_up or _is_cancelled():
                raise
            return CallFailed(grpc.StatusCode.UNAVAILABLE, self._given_up)
        except TimeoutError:
            late = CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "the server did not answer Hello in time")
            return None if self._is_drained else late
        ended = CallFailed(grpc.StatusCode.UNAVAILABLE, "the server ended the stream")
        return None if self._is_leaving or self._is_drained else ended

    def _receive(self, message: pb.ConnectResponse) -> bool:
        """Take in a message. False: the server must hear another Hello at once."""
        goes_on = True
        for frame in message.frames:
            if frame.HasField("welcome"):
                if self.is_welcome.is_set():
                    log(INFO, "stream_restored")
                goes_on = self._dialogue.welcomed(frame.welcome)
                self._reconnects.served()
                self._ticks = 0
                self._next_tick()  # at the interval that this server wants
                self.is_welcome.set()
            elif frame.HasField("drain"):
                self._is_drained = True
                self._has_news.set()
            else:
                self._dialogue.receive(frame)
        return goes_on

    async def _write(self, call: Any) -> None:
        try:
            self._dialogue.greets()
            await call.write(pb.ConnectRequest(frames=[pb.WorkerFrame(hello=self._hello())]))
            while not self._is_leaving and not self._is_drained:
                await self._has_news.wait()
                self._has_news.clear()
                await self._write_ready(call)
            await self._write_ready(call)  # which may have come during the last write
            if self._is_leaving:
                await call.write(pb.ConnectRequest(frames=[pb.WorkerFrame(goodbye=pb.Goodbye())]))
            await call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
            return  # the stream has ended: the reader learns why

    async def _write_ready(self, call: Any) -> None:
        for frames in in_messages(self._dialogue.take_frames()):
            await call.write(pb.ConnectRequest(frames=frames))
        self._dialogue.written()

    def _next_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ticked_at = self._held.clock.now()
        interval = self._held.terms.heartbeat_interval / _BEATS_PER_INTERVAL
        self._timer = self._held.clock.call_later(interval, self._tick)

    def _tick(self) -> None:
        """Renew leases every interval; more often, look whether one is to be given up or the server is silent."""
        self._ticks += 1
        if self._ticks % _BEATS_PER_INTERVAL == 0:
            self._dialogue.heartbeat()
        else:
            self._dialogue.expire()
        self._held.name_bodies()
        silence = self._held.clock.now() - self._heard_at
        if self._has_stood_still():
            self._give_up(_STOOD_STILL)
        elif silence > _SILENT_INTERVALS * self._held.terms.heartbeat_interval:
            self._give_up("the server fell silent")
        self._next_tick()

    def _has_stood_still(self) -> bool:
        """Whether this process was frozen, or its loop blocked, so long that what it reads may be others' by now."""
        return self._held.clock.now() - self._ticked_at > self._held.terms.longest_standstill

    def _reconnect(self) -> None:
        """Another Hello is wanted. Not of a worker that leaves: its Goodbye gives everything back."""
        if not self._is_leaving:
            self._give_up(_GAVE_UP)

    def _give_up(self, why: str) -> None:
        """End the stream from this side, to begin another one."""
        if self._call is not None:
            self._given_up = why
            self._call.cancel()


def _is_cancelled() -> bool:
    """Whether the task that asks is itself to end, rather than something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def in_messages(frames: list[pb.WorkerFrame]) -> Iterator[list[pb.WorkerFrame]]:
    """Frames in as few messages as the server's bounds allow."""
    return packed(frames, _size, _MESSAGE_FRAMES)


def _size(frame: pb.WorkerFrame) -> tuple[int, int]:
    return frame.ByteSize(), 1 + len(frame.opens)
