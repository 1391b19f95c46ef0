"""Carry hints between replicas: ours out, coalesced, and theirs in."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from stepwell_server.domain.errors import StepwellError
from stepwell_server.domain.tasks import Handler
from stepwell_server.engine.groups import Committed
from stepwell_server.storage.database import Database, TxOptions
from stepwell_server.storage.hints import Hint, Hints

COALESCED = 0.01
"""Seconds for which hints are collected before they are sent as one."""

_OPTIONS = TxOptions(label="hint", attempts=1, reserved=True)

log = structlog.get_logger()


class HintRelay:
    """Collects whom our commits touched, and tells the other replicas."""

    def __init__(self, db: Database, hints: Hints) -> None:
        self._db = db
        self._hints = hints
        self._touched: set[Handler] = set()
        self._told: set[int] = set()
        self._moved: set[int] = set()
        self._any = asyncio.Event()

    def note(self, committed: Committed) -> None:
        """This is what a commit of ours changed."""
        self._touched.update(committed.touched)
        self._told.update(committed.told)
        self._moved.update(committed.statuses)
        if self._touched:
            self._any.set()

    async def run(self) -> None:
        """Send what was collected, until cancelled. A hint that fails is dropped: the others' sweep will find it."""
        while True:
            await self._any.wait()
            await asyncio.sleep(COALESCED)
            hint = Hint(frozenset(self._touched), frozenset(self._told), frozenset(self._moved))
            self._touched, self._told, self._moved = set(), set(), set()
            self._any.clear()
            try:
                await self._db.run_tx(partial(self._hints.send, hint=hint), _OPTIONS)
            except StepwellError as error:
                log.debug("hint_dropped", reason=error.reason)
