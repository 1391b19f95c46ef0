"""Turns: long work on the loop is done a part at a time, and other work gets a turn in between.

A thread would not help: such work is Python, which holds the interpreter's lock wherever it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

PART = 4 * 1024
"""Characters, or as much work, that a call does at once: about a millisecond of the worst kind. Another call takes
several rounds of the loop, each of which can have such a part in it."""
LEAST = PART // 8
"""Work that is not counted before there is more of it."""
LEASE_COST = 40
"""Of looking at a lease that is named, or of saying that it is lost."""

_done: ContextVar[int] = ContextVar("done_in_turn", default=0)


class Turns:
    """Lets calls with much to do go on one after the other, one part in each round of the loop."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    async def work(self, parts: Iterable[int]) -> None:
        """Do work that says after each part how much it was. A refusal counts as a part, too: it can be a long one."""
        done = 0
        try:
            for amount in parts:
                done += amount
                if done >= LEAST:
                    await self.spend(done)
                    done = 0
        except Exception:
            await self.spend(PART)
            raise
        await self.spend(done)

    async def over(self, items: Iterable[Item], amount: int) -> AsyncIterator[Item]:
        """The items, each of which is so much work for the part that takes it."""
        for item in items:
            yield item
            await self.spend(amount)

    async def spend(self, amount: int) -> None:
        """Count work that was done. A call that has done a part waits for its next turn."""
        done = _done.get() + amount
        _done.set(done if done < PART else 0)
        if done >= PART:
            async with self._line:
                await asyncio.sleep(0)
