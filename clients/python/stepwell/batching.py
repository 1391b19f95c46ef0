"""Coalescing: calls made while another one is in flight travel together, each with its own answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

ItemT = TypeVar("ItemT", bound=Message)
AnswerT = TypeVar("AnswerT")

MOST_ITEMS = 100
MOST_BYTES = 3 * 1024 * 1024


class Coalescer(Generic[ItemT, AnswerT]):
    """Sends items one batch at a time. A batch that fails fails for each of its callers, and is never mixed anew."""

    def __init__(self, send: Callable[[list[ItemT]], Awaitable[Sequence[AnswerT]]]) -> None:
        self._send = send
        self._queue: deque[tuple[ItemT, asyncio.Future[AnswerT]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def submit(self, item: ItemT) -> AnswerT:
        """Send an item with the next batch and wait for its own answer."""
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._queue.append((item, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await answer

    async def close(self) -> None:
        """Stop sending; callers that still wait are cancelled."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        while self._queue:
            self._queue.popleft()[1].cancel()

    async def _send_all(self) -> None:
        try:
            while self._queue:
                await self._send_one()
        finally:
            self._sending = None

    async def _send_one(self) -> None:
        batch = self._take()
        answers = [answer for _, answer in batch]
        try:
            results = await self._send([item for item, _ in batch])
            for answer, result in zip(answers, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
        except Exception as error:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            for answer in answers:
                answer.cancel()  # only if the sending itself was cancelled is one still open

    def _take(self) -> list[tuple[ItemT, asyncio.Future[AnswerT]]]:
        batch: list[tuple[ItemT, asyncio.Future[AnswerT]]] = []
        size = 0
        while self._queue and len(batch) < MOST_ITEMS:
            size += self._queue[0][0].ByteSize()
            if batch and size > MOST_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch


def in_batches(items: Sequence[ItemT]) -> Iterator[list[ItemT]]:
    """Items in as few batches as their number and bytes allow."""
    batch: list[ItemT] = []
    size = 0
    for item in items:
        length = item.ByteSize()
        if batch and (len(batch) == MOST_ITEMS or size + length > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch
