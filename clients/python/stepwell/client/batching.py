"""Batches: what travels together is answered one by one, and what was unavailable is sent again by itself.

Coalescing: calls made while another one is in flight travel together, each with its own answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeAlias

from google.protobuf.message import Message
from grpc import StatusCode

from stepwell.calls import AnswerT, ItemT, Result, ResultT
from stepwell.errors import CallFailed
from stepwell.packing import packed
from stepwell.tuning import DEFAULT, Tuning
from stepwell.v1 import errors_pb2

Send: TypeAlias = Callable[[Sequence[ItemT], float], Awaitable[Sequence[AnswerT]]]
"""Sends items, each of which carries its request_id, within so many seconds; answers one by one."""

HEAD_START = 0.1
"""Seconds by which a batch ends before the last of its callers gives up."""

_UNAVAILABLE: int = StatusCode.UNAVAILABLE.value[0]
_BUSY = frozenset({errors_pb2.ERROR_REASON_SERVER_BUSY, errors_pb2.ERROR_REASON_RATE_LIMITED})


@dataclass(slots=True)
class MostItems:
    """How many items a server takes in one call: as many as servers usually do, until it says otherwise."""

    number: int = 100

    def learns_from(self, error: Exception, sent: int) -> bool:
        """Whether a batch of so many was refused for their number, and fewer are worth a try from now on."""
        if not isinstance(error, CallFailed) or error.reason != "BATCH_TOO_LARGE":
            return False
        limit = error.metadata.get("limit", "")
        if not limit.isdecimal() or not 0 < int(limit) < sent:
            return False
        self.number = int(limit)
        return True


@dataclass(slots=True, eq=False)
class _Asked(Generic[ItemT, AnswerT]):
    """An item, the future of its answer, and its deadline."""

    item: ItemT
    answer: asyncio.Future[AnswerT]
    deadline: float


class Coalescer(Generic[ItemT, AnswerT]):
    """Sends items one batch at a time. A batch that fails fails for each of its callers, and is never mixed anew.

    A batch that had more items than the server takes goes again, in smaller ones: nothing of it was looked at.
    """

    def __init__(self, send: Send[ItemT, AnswerT], most: MostItems) -> None:
        self._send = send
        self._most = most
        self._queue: deque[_Asked[ItemT, AnswerT]] = deque()
        self._sent: Sequence[_Asked[ItemT, AnswerT]] = ()
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # one for all items: most are answered long before it is due

    async def submit(self, item: ItemT, seconds: float) -> AnswerT:
        """Send an item with the next batch and wait for its own answer, for so long at most, whatever else is in it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        asked = _Asked(item, answer, loop.time() + seconds)
        self._queue.append(asked)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        if self._timer is None or asked.deadline < self._timer.when():
            self._wake_at(asked.deadline)
        return await answer

    def _wake_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the items whose time is over, and come back for the next one."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        waiting = [asked for asked in (*self._sent, *self._queue) if not asked.answer.done()]
        for asked in waiting:
            if asked.deadline <= now:
                asked.answer.set_exception(CallFailed(StatusCode.DEADLINE_EXCEEDED, "no answer in time"))
        later = [asked.deadline for asked in waiting if asked.deadline > now]
        if later:
            self._wake_at(min(later))

    async def close(self) -> None:
        """Stop sending; callers that still wait are cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        while self._queue:
            self._queue.popleft().answer.cancel()

    async def _send_all(self) -> None:
        try:
            while self._queue:
                await self._send_one()
        finally:
            self._sending = None

    async def _send_one(self) -> None:
        batch = self._take()
        if not batch:
            return
        self._sent = batch
        left = max(asked.deadline for asked in batch) - asyncio.get_running_loop().time()
        left -= min(HEAD_START, left / 10)  # else the callers give up first, and are not told why there was no answer
        try:
            results = await self._send([asked.item for asked in batch], left)
            for asked, result in zip(batch, results, strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(result)
        except asyncio.CancelledError:
            for asked in batch:
                asked.answer.cancel()
            raise
        except Exception as error:
            if self._most.learns_from(error, len(batch)):
                self._queue.extendleft(reversed(batch))
                return
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
        finally:
            self._sent = ()

    def _take(self) -> list[_Asked[ItemT, AnswerT]]:
        """As many as may go together, without those whose callers have gone."""
        first = next(packed(self._queue, lambda asked: _size(asked.item), self._most.number), [])
        batch = [self._queue.popleft() for _ in first]
        return [asked for asked in batch if not asked.answer.done()]


async def until_available(
    send: Send[ItemT, ResultT], items: Sequence[ItemT], seconds: float, tuning: Tuning = DEFAULT
) -> list[ResultT]:
    """Send items, and again those whose own answer is that the server cannot now, until the time is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    return await repeated(send, items, list(await send(items, seconds)), deadline, tuning)


async def repeated(
    send: Send[ItemT, ResultT], items: Sequence[ItemT], results: list[ResultT], deadline: float, tuning: Tuning
) -> list[ResultT]:
    """The results, of which those that say that the server cannot now are replaced: their items are sent again.

    So does the channel with a call that is answered so as a whole. The caller cannot: it would be another request_id.
    """
    for pause in tuning.pauses():
        again = [at for at, result in enumerate(results) if is_passing(result)]
        left = deadline - asyncio.get_running_loop().time() - pause
        if not again or left <= 0:
            break
        await asyncio.sleep(pause)
        for at, result in zip(again, await send([items[at] for at in again], left), strict=True):
            results[at] = result
    return results


async def in_batches(
    send: Send[ItemT, ResultT], items: Sequence[ItemT], seconds: float, most: MostItems, tuning: Tuning = DEFAULT
) -> list[ResultT]:
    """Send items in as few batches as their number and bytes allow, one after the other, each within the time."""
    results: list[ResultT] = []
    while len(results) < len(items):
        batch = next(packed(islice(items, len(results), None), _size, most.number))
        try:
            results += await until_available(send, batch, seconds, tuning)
        except CallFailed as failure:
            if not most.learns_from(failure, len(batch)):
                raise
    return results


def _size(item: Message) -> tuple[int, int]:
    return item.ByteSize(), 1


def is_passing(result: Result) -> bool:
    """Whether an item was refused, and the same may go through in a moment."""
    error = result.error
    return error.code == _UNAVAILABLE or error.reason in _BUSY
