"""Processors: what a dispatcher drives. One tells when something is due next, and handles what is due when asked to.

async with Client("127.0.0.1:7350") as client:
    processor = ServerProcessor(client, names=["order"])
    print(await processor.next_wake(), await processor.process())
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.client.client import Client
from stepwell.durations import DurationLike, to_datetime, to_duration, to_seconds
from stepwell.errors import CallFailed, failure_of
from stepwell.kinds import kind_name, kind_number
from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub

_MOST_REPLICAS = 100


@dataclass(frozen=True, slots=True)
class Unserved:
    """Due work whose handler has no connected worker."""

    kind: str
    name: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class NextWake:
    """When something can be handled next, counted from the moment of the answer, so that no two clocks are compared."""

    delay: float | None = None
    """Seconds until then; 0 if something is due, None if nothing waits."""
    number: int = 0
    """Grows when something may have changed: what could not be handed out before is worth another pass."""
    unserved: tuple[Unserved, ...] = ()
    """Due work without a worker."""

    @property
    def is_due(self) -> bool:
        """Whether something can be handled now."""
        return self.delay is not None and self.delay <= 0


class Processor(Protocol):
    """Handles what is due in one namespace."""

    @property
    def namespace(self) -> str:
        """The namespace, for logs."""

    async def process(self) -> int:
        """Handle what is due, in one bounded pass, and return how many tasks that were."""

    async def next_wake(self) -> NextWake:
        """When a pass is worth making next."""


class FollowedProcessor(Processor, Protocol):
    """A processor that also tells by itself when its next wake changes."""

    def follow(self) -> AsyncIterator[NextWake]:
        """The next wake, then every change of it, until the source goes away for a while."""


class ProcessorsFailed(ExceptionGroup[Exception]):
    """Some processors of a group failed, and what the others did and said all the same."""

    def __new__(cls, errors: Sequence[Exception], processed: int = 0, next_wake: NextWake | None = None) -> Self:
        """The group of these errors."""
        return super().__new__(cls, f"{len(errors)} of the processors failed", errors)

    def __init__(self, errors: Sequence[Exception], processed: int = 0, next_wake: NextWake | None = None) -> None:
        self.processed = processed
        self.next_wake = next_wake or NextWake()

    def derive(self, errors: Sequence[Exception], /) -> ProcessorsFailed:  # type: ignore[override]
        """The same about some of the errors, as `except*` wants it."""
        return ProcessorsFailed(errors, self.processed, self.next_wake)


class ProcessorGroup:
    """Several processors driven as one: its next wake is the earliest, and one that fails does not stop the others."""

    def __init__(self, *processors: Processor) -> None:
        self._processors = processors

    @property
    def namespace(self) -> str:
        """The namespaces of all, each once."""
        return ", ".join(dict.fromkeys(processor.namespace for processor in self._processors))

    async def process(self) -> int:
        """A pass of each, side by side. ProcessorsFailed if some of them failed, when all have ended."""
        counts, errors = await self._ask("process")
        if errors:
            raise ProcessorsFailed(errors, processed=sum(counts))
        return sum(counts)

    async def next_wake(self) -> NextWake:
        """The earliest of all. ProcessorsFailed, with the earliest of the others, if some could not say."""
        wakes, errors = await self._ask("next_wake")
        earliest = _earliest(wakes)
        if errors:
            raise ProcessorsFailed(errors, next_wake=earliest)
        return earliest

    async def _ask(self, method: str) -> tuple[list[Any], list[Exception]]:
        calls = [getattr(processor, method)() for processor in self._processors]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = []
        for processor, answer in zip(self._processors, answers, strict=True):
            if isinstance(answer, BaseException):
                answer.add_note(f"in the processor of namespace {processor.namespace}")
                errors.append(answer if isinstance(answer, Exception) else _as_error(answer))
        return [answer for answer in answers if not isinstance(answer, BaseException)], errors


class ServerProcessor:
    """Tasks of a server: `DispatcherService` as a processor, for the client's namespace.

    `kinds` and `names` choose among its handlers; none means all. A pass hands out at most `max_tasks`, of which each
    run does at most `max_steps` steps (0: any number). With `wait`, a pass lasts until those have ended, or so long,
    and counts those that did; without, it counts what it handed out.
    """

    def __init__(
        self,
        client: Client,
        *,
        kinds: Sequence[str] = (),
        names: Sequence[str] = (),
        max_tasks: int = 100,
        max_steps: int = 0,
        wait: DurationLike = 0,
    ) -> None:
        self._client = client
        self._filter = pb.WakeFilter(kinds=map(kind_number, kinds), names=names)
        self._bounds = {"max_tasks": max_tasks, "max_steps": max_steps, "wait": to_duration(wait)}
        self._wait = to_seconds(wait)
        self._numbers: dict[str, int] = {}
        self._number = 0

    @property
    def namespace(self) -> str:
        """The client's namespace."""
        return self._client.namespace

    async def process(self) -> int:
        """Have what is due handed out. CallFailed if the server refuses or cannot be reached."""
        request = pb.ProcessRequest(namespace=self.namespace, filter=self._filter, **self._bounds)  # type: ignore[arg-type]
        method = self._client.stub(DispatcherServiceStub).Process
        answer = await self._client.call(method, request, self._client.timeout + self._wait)
        return answer.processed if self._wait else answer.handed_out

    async def next_wake(self) -> NextWake:
        """Ask the server. CallFailed if it refuses or cannot be reached."""
        request = pb.GetNextWakeRequest(namespace=self.namespace, filter=self._filter)
        answer = await self._client.call(self._client.stub(DispatcherServiceStub).GetNextWake, request)
        return self._read(answer.next_wake, answer.now)

    async def follow(self) -> AsyncIterator[NextWake]:
        """Follow the server's stream to its end. CallFailed if the stream is refused, breaks or falls silent."""
        request = pb.WakeStreamRequest(namespace=self.namespace, filter=self._filter)
        call: Any = self._client.stub(DispatcherServiceStub).WakeStream(request)
        try:
            while True:
                async with asyncio.timeout(self._client.tuning.silence):
                    message = await call.read()
                if message is aio.EOF:
                    return
                yield self._read(message.next_wake, message.now)
                if message.draining:
                    return
        except aio.AioRpcError as error:
            raise failure_of(error, self._client.address) from None
        except TimeoutError:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the server fell silent") from None
        finally:
            call.cancel()

    def _read(self, wake: pb.NextWake, now: Timestamp) -> NextWake:
        """Both times are the server's: their difference holds whatever the clocks here say."""
        delay = None
        if wake.HasField("wake_at"):
            delay = max(0.0, (to_datetime(wake.wake_at) - to_datetime(now)).total_seconds())
        if wake.number > self._numbers.get(wake.replica_id, -1):
            self._note(wake.replica_id, wake.number)
        return NextWake(delay, self._number, tuple(map(_unserved, wake.unserved)))

    def _note(self, replica_id: str, number: int) -> None:
        """Count a change that a replica tells of: numbers of different replicas cannot be compared, this count can."""
        if len(self._numbers) >= _MOST_REPLICAS:
            self._numbers.clear()
        self._numbers[replica_id] = number
        self._number += 1


def _unserved(work: pb.Unserved) -> Unserved:
    return Unserved(kind_name(work.kind), work.name, to_datetime(work.due_at))


def _earliest(wakes: Sequence[NextWake]) -> NextWake:
    delays = [wake.delay for wake in wakes if wake.delay is not None]
    unserved = tuple(work for wake in wakes for work in wake.unserved)
    return NextWake(min(delays, default=None), sum(wake.number for wake in wakes), unserved)


def _as_error(error: BaseException) -> Exception:
    """A cancelled part of one processor is a failure of it, not of the whole group."""
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
