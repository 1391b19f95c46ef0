"""The wake bus: when something can be claimed next, kept in memory, fed by commits, hints and the sweep.

It is late by one question to the database at most. A commit notes the handlers that it touched, and one question
covers all handlers that were noted meanwhile. Subscribers cost no statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake

Match: TypeAlias = Callable[[Handler], bool]

SET_BACK = 10 * SECOND


def every(_handler: Handler) -> bool:
    """Every handler matches."""
    return True


class DatabaseTime:
    """An estimate of the database's time between its answers. It measures waits, and decides nothing."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        self._at = Stamp(0, 0)
        self._seen = 0.0

    def observe(self, at: Stamp) -> None:
        """Take over a reading of the database's clock. A late answer never moves a virtual clock back.

        A late answer is as old as a transaction takes at most. A much older one is of a clock that was set back.
        """
        newest = at.lease_now >= self._at.lease_now or self.lease_now() - at.lease_now > SET_BACK
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

    def stamp(self) -> Stamp:
        """About what both would say."""
        return Stamp(self.now(), self.lease_now())

    def _elapsed(self) -> Micros:
        return round((asyncio.get_running_loop().time() - self._seen) * SECOND)


@dataclass(frozen=True, slots=True)
class NextWake:
    """The earliest times at which something can be claimed, one by each clock, as of the change of that number."""

    number: int
    due_at: Micros | None
    lapses_at: Micros | None


class Notes:
    """Handlers whose next wake may have changed, until the database has been asked about them."""

    def __init__(self) -> None:
        self._count = 0
        self._noted_at: dict[Handler | None, int] = {}
        """The last note about each handler; of None: about all."""
        self._waiting: set[Handler] = set()
        self._all_wait = False
        self._any = asyncio.Event()

    def add(self, handlers: Iterable[Handler] | None) -> None:
        """These handlers' next wakes may have changed; None: any may have."""
        self._count += 1
        if handlers is None:
            self._all_wait = True
            self._noted_at[None] = self._count
        else:
            named = set(handlers)
            self._waiting |= named
            self._noted_at.update(dict.fromkeys(named, self._count))
        if self.are_waiting:
            self._any.set()

    @property
    def are_waiting(self) -> bool:
        """Whether the database is to be asked about any."""
        return self._all_wait or bool(self._waiting)

    def mark(self) -> int:
        """To be taken before the database is asked: its answer knows nothing of what is noted from now on."""
        return self._count

    def any_since(self, match: Match, mark: int) -> bool:
        """Whether anything that matches was noted since a mark."""
        return any(at > mark and (handler is None or match(handler)) for handler, at in self._noted_at.items())

    def has_since(self, handler: Handler, mark: int) -> bool:
        """Whether this handler was noted since a mark."""
        return max(self._noted_at.get(handler, 0), self._noted_at.get(None, 0)) > mark

    async def take(self) -> Sequence[Handler] | None:
        """Wait until something was noted, and take it all; None: ask for everything."""
        await self._any.wait()
        self._any.clear()
        taken = None if self._all_wait else list(self._waiting)
        self._all_wait, self._waiting = False, set()
        return taken


class WakeBus:
    """Next wakes by handler, and the waits for their changes."""

    def __init__(self, time: DatabaseTime) -> None:
        self.time = time
        self.number = 0
        """Grows with every change that this replica has seen."""
        self.registered: set[Handler] = set()
        """Handlers that a worker hosts or that have a target, as far as is known."""
        self.served: frozenset[Handler] = frozenset()
        """Handlers that workers connected to any replica host, as far as is known."""
        self._wakes: dict[Handler, HandlerWake] = {}
        self._read_at: dict[Handler, int] = {}
        """How much was noted when the question began that a wake answers."""
        self.notes = Notes()
        self._changed = asyncio.Event()

    def refresh(self, found: Sequence[HandlerWake], at: Stamp, mark: int, whole: Match | None = None) -> None:
        """Take over what the database said after the mark was taken, and wake subscribers if it is news.

        It is the whole answer for handlers that match `whole`: those of them that were not found have no tasks.
        """
        moved = self._observe(at)
        if self._take_over([*found, *self._idle(found, whole)], mark) or moved:
            self._tell()

    def learn(self, committed: Committed) -> None:
        """Take over what one of our own commits says: sooner times at once, all else when the database is asked."""
        moved = self._observe(committed.at)
        is_news = self._take_over(committed.wakes, committed.mark, committed=True)
        claimed = {wake.handler for wake in committed.wakes}  # read after the group was written: they know its tasks
        for handler in (committed.due.keys() | committed.leases_end.keys() | committed.slots_freed) - claimed:
            known = self._wakes.get(handler, HandlerWake(handler, None, None))
            freed = known.held_back if handler in committed.slots_freed else None
            sooner = replace(
                known,
                due_at=_sooner(_sooner(known.due_at, committed.due.get(handler)), freed),
                lapses_at=_sooner(known.lapses_at, committed.leases_end.get(handler)),
            )
            is_news |= self._put(sooner)
        if is_news or moved:
            self._tell()
        self.notes.add(committed.handlers | claimed)  # what a claim saw may be over by the time it commits

    def _take_over(self, found: Iterable[HandlerWake], mark: int, *, committed: bool = False) -> bool:
        """Take over a wake that was read after a mark, unless a later answer is known. Returns whether it is news.

        The reading may lack handlers that were noted since, and commits. There the sooner wake counts, the known or the
        read one, until the database was asked again.
        """
        is_news = False
        for one in found:
            if one.is_registered:
                self.registered.add(one.handler)
            else:
                self.registered.discard(one.handler)
            is_late = self._read_at.get(one.handler, 0) > mark
            if is_late and not committed:
                continue
            self._read_at[one.handler] = max(mark, self._read_at.get(one.handler, 0))
            known = self._wakes.get(one.handler)
            is_noted = self.notes.has_since(one.handler, mark)
            if known is not None and (is_late or is_noted):
                one = replace(
                    one,
                    due_at=_sooner(one.due_at, known.due_at),
                    lapses_at=_sooner(one.lapses_at, known.lapses_at),
                )
            is_news |= self._put(one)
        return is_news

    def _idle(self, found: Iterable[HandlerWake], whole: Match | None) -> list[HandlerWake]:
        """Wakes of known handlers that have no tasks by a whole answer."""
        if whole is None:
            return []
        gone = self._wakes.keys() - {one.handler for one in found}
        return [HandlerWake(one, None, None, one in self.registered) for one in gone if whole(one)]

    def _put(self, wake: HandlerWake) -> bool:
        is_news = self._wakes.get(wake.handler) != wake
        self._wakes[wake.handler] = wake
        return is_news

    def serve(self, served: frozenset[Handler]) -> None:
        """These handlers have connected workers, on whatever replica."""
        if served != self.served:
            self.served = served
            self._tell()

    def workers_changed(self) -> None:
        """A worker came to this replica, or left it: what is unserved may be other work now."""
        self._tell()

    def clock_moved(self, at: Stamp) -> None:
        """Note that a virtual clock was moved: every wait for a time looks again."""
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

    def is_due(self, handler: Handler) -> bool:
        """Whether a task of a handler is due now."""
        due_at = self.due_at(handler)
        return due_at is not None and due_at <= self.time.now()

    def due_handlers(self, match: Match) -> list[tuple[Handler, Micros]]:
        """Handlers with something due now, and since when; the oldest first."""
        now = self.time.now()
        since = {one.handler: one.due_at for one in self._wakes.values() if one.due_at is not None}
        due = [(handler, at) for handler, at in since.items() if at <= now and match(handler)]
        return sorted(due, key=lambda one: one[1])

    def next_after(self, match: Match, instant: Micros) -> Micros | None:
        """The first time after an instant at which something that matches becomes due."""
        due = [one.due_at for one in self._wakes.values() if one.due_at is not None and match(one.handler)]
        return min((at for at in due if at > instant), default=None)

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


def _sooner(one: Micros | None, other: Micros | None) -> Micros | None:
    """The earlier of two times; None is never."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
