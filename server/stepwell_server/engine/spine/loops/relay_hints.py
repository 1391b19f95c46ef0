"""Carry hints between replicas: ours out, coalesced, and theirs in."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.wakes import ProcessOrder
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.storage.database.hints import Hint, Hints

COALESCED = 0.01
"""Seconds for which hints are collected before they are sent as one."""


class HintRelay:
    """Collects what the commits of this replica changed, and tells the other replicas."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._handlers: set[Handler] = set()
        self._must_look: set[int] = set()
        self._moved: set[int] = set()
        self._orders: dict[ProcessOrder, None] = {}
        self._any = asyncio.Event()

    def note(self, committed: Committed, moved: Collection[int]) -> None:
        """Tell the other replicas of a commit, and of the tasks that those who follow them want to hear of."""
        self._handlers.update(committed.handlers)
        self._must_look.update(committed.must_look)
        self._moved.update(moved)
        if self._handlers:
            self._any.set()

    def order(self, order: ProcessOrder) -> None:
        """Have this handed out by the other replicas as well: they have workers, too."""
        self._orders[order] = None
        self._any.set()

    async def run(self) -> None:
        """Send what was collected, until cancelled."""
        while True:
            await self._any.wait()
            await asyncio.sleep(COALESCED)
            hint = Hint(frozenset(self._handlers), frozenset(self._must_look), frozenset(self._moved))
            self._handlers, self._must_look, self._moved = set(), set(), set()
            orders, self._orders = list(self._orders), {}
            self._any.clear()
            await self._hints.send(hint)
            for order in orders:
                await self._hints.send(Hint(frozenset(), order=order))
