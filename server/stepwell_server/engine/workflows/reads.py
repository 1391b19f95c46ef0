"""Reads of single instances that many callers want at once: those that come meanwhile go with the next question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

from stepwell_server.domain.workflows.instances import Instance

Read: TypeAlias = Callable[[Sequence[int]], AsyncIterator[Instance]]


@dataclass(slots=True)
class Reads:
    """One question to the database at a time, for all who want an instance as it is now."""

    read: Read
    _wanted: dict[int, list[asyncio.Future[Instance | None]]] = field(default_factory=dict)
    _reading: asyncio.Task[None] | None = None

    async def one(self, number: int) -> Instance | None:
        """The instance as it is at some time after the call. None: it is gone."""
        answer: asyncio.Future[Instance | None] = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(number, []).append(answer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        return await answer

    async def _read_all(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                await self._read_some(wanted)
        finally:
            self._reading = None

    async def _read_some(self, wanted: dict[int, list[asyncio.Future[Instance | None]]]) -> None:
        try:
            async for one in self.read(list(wanted)):
                _settle(wanted.pop(one.id), one)
        except Exception as error:
            for answer in (answer for answers in wanted.values() for answer in answers if not answer.done()):
                answer.set_exception(copy(error))  # of its own: one that many raise gathers all their tracebacks
        else:
            for answers in wanted.values():
                _settle(answers, None)


def _settle(answers: Sequence[asyncio.Future[Instance | None]], found: Instance | None) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(found)
