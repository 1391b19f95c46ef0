"""The wake bus: when something can be claimed next, kept in memory, fed by commits, hints and the sweep.

It is never later than the truth for longer than it takes to ask: whoever commits notes whom it touched, and one
question to the database covers everybody who was noted meanwhile. Subscribers cost no statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stepwell_server.domain.tasks import Handler
from stepwell_server.domain.times import SECOND, Micros
from stepwell_server.engine.groups import Committed
from stepwell_server.storage.handlers import HandlerWake
from stepwell_server.storage.tasks import Stamp

Match: TypeAlias = Callable[[Handler], bool]


class DatabaseTime:
    """An estimate of the database's time between its answers. It measures waits, and decides nothing."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        self._at = Stamp(0, 0)
        self._seen = 0.0

    def observe(self, at: Stamp) -> None:
        """Take over what the database just said. A virtual clock never goes back, whatever an older answer says."""
        newest = at.lease_now >= self._at.lease_now
        if newest:
            self._seen = asyncio.get_running_loop().time()
        if self.virtual:
            self._at = Stamp(max(at.now, self._at.now), max(at.lease_now, self._at.lease_now))
        elif newest:
            self._at = at

    def now(self) -> Micros:
        """About what db_now() would say: a virtual clock stands between answers, a real one goes on."""
        return self._at.now if self.virtual else self._at.now + self._elapsed()

    def lease_now(self) -> Micros:
        """About what lease_now() would say."""
        return self._at.lease_now + self._elapsed()

    def _elapsed(self) -> Micros:
        return round((asyncio.get_running_loop().time() - self._seen) * SECOND)


@dataclass(frozen=True, slots=True)
class NextWake:
    """The earliest times at which something can be claimed, one by each clock, as of the change of that number."""

    number: int
    due_at: Micros | None
    lapses_at: Micros | None


class WakeBus:
    """Next wakes by handler, and everybody who wants to know when they change."""

    def __init__(self, time: DatabaseTime) -> None:
        self.time = time
        self.number = 0
        """Grows with every change that this replica has seen."""
        self.registered: set[Handler] = set()
        """Handlers that somebody hosts or that have a target, as far as is known."""
        self.served: set[Handler] = set()
        """Handlers that workers connected to any replica host, as far as is known."""
        self._wakes: dict[Handler, HandlerWake] = {}
        self._noted: set[Handler] = set()
        self._all_noted = False
        self._noted_any = asyncio.Event()
        self._changed = asyncio.Event()

    def note(self, handlers: Iterable[Handler] | None) -> None:
        """These handlers' next wakes may have changed; None: any may have."""
        if handlers is None:
            self._all_noted = True
        else:
            self._noted.update(handlers)
        if self._all_noted or self._noted:
            self._noted_any.set()

    async def take_noted(self) -> Sequence[Handler] | None:
        """Wait until something was noted, and take it all; None: ask for everything."""
        await self._noted_any.wait()
        self._noted_any.clear()
        taken = None if self._all_noted else list(self._noted)
        self._all_noted, self._noted = False, set()
        return taken

    def refresh(self, asked: Sequence[Handler] | None, found: Iterable[HandlerWake], at: Stamp) -> None:
        """Take over what the database said about these handlers, and wake subscribers if it is news."""
        moved = self._observe(at)
        before = dict(self._wakes)
        if asked is None:
            self._wakes.clear()
        for one in found:
            if one.is_registered:
                self.registered.add(one.handler)
            else:
                self.registered.discard(one.handler)
            newer = before.get(one.handler) if one.handler in self._noted else None
            self._wakes[one.handler] = one if newer is None else _sooner(one, newer.due_at)
        if moved or self._wakes != before:
            self._tell()

    def learn(self, committed: Committed) -> None:
        """Take over what one of our own commits says: sooner times at once, all else when the database is asked."""
        moved = self._observe(committed.at)
        before = dict(self._wakes)
        for handler, due_at in committed.due.items():
            known = self._wakes.get(handler, HandlerWake(handler, None, None))
            self._wakes[handler] = _sooner(known, due_at)
        self._wakes.update({wake.handler: wake for wake in committed.wakes})
        if moved or self._wakes != before:
            self._tell()
        self.note(committed.touched)
        self.note([wake.handler for wake in committed.wakes])  # what a claim saw may be over by the time it commits

    def clock_moved(self, at: Stamp) -> None:
        """A virtual clock was moved: whoever waits for a time looks again."""
        self.time.observe(at)
        self._tell()

    def _observe(self, at: Stamp) -> bool:
        """Whether a virtual clock was moved, here or by another replica."""
        before = self.time.now() if self.time.virtual else 0
        self.time.observe(at)
        return self.time.virtual and self.time.now() > before

    def _tell(self) -> None:
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def next_wake(self, match: Match) -> NextWake:
        """The next wake over the handlers that match."""
        wakes = [wake for handler, wake in self._wakes.items() if match(handler)]
        return NextWake(
            self.number,
            min((wake.due_at for wake in wakes if wake.due_at is not None), default=None),
            min((wake.lapses_at for wake in wakes if wake.lapses_at is not None), default=None),
        )

    def due_at(self, handler: Handler) -> Micros | None:
        """When the next task of a handler is due. None: none is, as things are."""
        wake = self._wakes.get(handler)
        return None if wake is None else wake.due_at

    def due_handlers(self, match: Match) -> list[tuple[Handler, Micros]]:
        """Handlers with something due now, and since when; the oldest first."""
        now = self.time.now()
        since = {one.handler: one.due_at for one in self._wakes.values() if one.due_at is not None}
        due = [(handler, at) for handler, at in since.items() if at <= now and match(handler)]
        return sorted(due, key=lambda one: one[1])

    async def changed_since(self, number: int) -> None:
        """Return once the number is another."""
        while self.number == number:
            await self._changed.wait()

    async def wait_until_due(self, match: Match) -> None:
        """Return once something that matches is due by the database's time."""
        while True:
            wake = self.next_wake(match)
            wait = None if wake.due_at is None else (wake.due_at - self.time.now()) / SECOND
            if wait is not None and wait <= 0:
                return
            try:
                async with asyncio.timeout(wait):
                    await self.changed_since(wake.number)
            except TimeoutError:
                continue


def _sooner(wake: HandlerWake, due_at: Micros | None) -> HandlerWake:
    if due_at is None or (wake.due_at is not None and wake.due_at <= due_at):
        return wake
    return replace(wake, due_at=due_at)
