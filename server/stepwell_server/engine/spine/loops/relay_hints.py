"""Carry hints between replicas: ours out, coalesced, and theirs in."""

from __future__ import annotations

import asyncio

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.wakes import ProcessOrder
from stepwell_server.engine.spine.group import Committed
from stepwell_server.storage.database.hints import Hint, Hints

COALESCED = 0.01
"""Seconds for which hints are collected before they are sent as one."""


class HintRelay:
    """Collects whom our commits touched, and tells the other replicas."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._touched: set[Handler] = set()
        self._told: set[int] = set()
        self._moved: set[int] = set()
        self._orders: dict[ProcessOrder, None] = {}
        self._any = asyncio.Event()

    def note(self, committed: Committed) -> None:
        """This is what a commit of ours changed."""
        self._touched.update(committed.touched)
        self._told.update(committed.told)
        self._moved.update(committed.statuses)
        if self._touched:
            self._any.set()

    def order(self, order: ProcessOrder) -> None:
        """Somebody asked us to have this handed out: the others have workers, too."""
        self._orders[order] = None
        self._any.set()

    async def run(self) -> None:
        """Send what was collected, until cancelled."""
        while True:
            await self._any.wait()
            await asyncio.sleep(COALESCED)
            hint = Hint(frozenset(self._touched), frozenset(self._told), frozenset(self._moved))
            self._touched, self._told, self._moved = set(), set(), set()
            orders, self._orders = list(self._orders), {}
            self._any.clear()
            await self._hints.send(hint)
            for order in orders:
                await self._hints.send(Hint(frozenset(), order=order))
