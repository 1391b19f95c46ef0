"""Use cases of dispatchers: learn when something is due, and have it handed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.wakes import ProcessOrder, Wake, WakeFilter
from stepwell_server.domain.values.errors import DurationOutOfRange, ProcessDisabled
from stepwell_server.domain.values.times import LONGEST_WAIT, SECOND, Micros
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.waits import Waits
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.spine import sessions, tasks, wakes
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake

MOST_QUESTIONS = 3
"""How often the database is asked for one answer while what it says changes."""
MOST_UNSERVED = 100
SHORTEST_WAIT = 0.001


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of one pass."""

    handed_out: int
    ended: int
    """Of those, how many executions ended while the call waited."""
    wake: Wake


@dataclass(slots=True, eq=False)
class _Feed:
    """The newest wake of one filter, for all its followers."""

    wake: Wake
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0
    task: asyncio.Task[None] | None = None

    def publish(self, wake: Wake) -> None:
        """Take over a newer wake, and tell all followers if it says something else."""
        is_news = not wake.says_the_same(self.wake)
        self.wake = wake
        if is_news:
            self.tell()

    def tell(self) -> None:
        """Wake up all followers."""
        self.changed.set()
        self.changed = asyncio.Event()


class Dispatchers:
    """The use cases of sidecars."""

    def __init__(self, replica: Replica, *, hands_out: bool) -> None:
        self._replica = replica
        self._hands_out = hands_out
        self._feeds: dict[WakeFilter, _Feed] = {}
        self._waits = Waits(replica.tuning.drain_wait)

    @property
    def is_draining(self) -> bool:
        """Whether the replica goes away."""
        return self._waits.is_draining

    # ---- wakes

    async def next_wake(self, wanted: WakeFilter) -> Wake:
        """The next wake, as the database says now; if it never stands still, not later than that."""
        wanted.check()
        await self._replica.registry.limits_of(wanted.namespace)

        def work(tx: Tx) -> tuple[list[HandlerWake], set[Handler], Stamp]:
            found = wakes.next_wakes_in(tx, wanted.namespace)
            return found, sessions.served(tx, wanted.namespace), tasks.stamp(tx)

        bus = self._replica.bus
        for _ in range(MOST_QUESTIONS):
            mark = bus.notes.mark()
            found, served, at = await self._replica.db.run_tx(work, READ)
            bus.refresh(found, at, mark, whole=lambda handler: handler.namespace == wanted.namespace)
            bus.serve(frozenset(one for one in bus.served if one.namespace != wanted.namespace) | served)
            if not bus.notes.any_since(wanted.matches, mark):
                break
        return self._current(wanted)

    def _current(self, wanted: WakeFilter) -> Wake:
        """The next wake, as far as this replica knows: never later than the truth for what it has committed itself."""
        bus = self._replica.bus
        wake, now = bus.next_wake(wanted.matches), bus.time.now()
        times = [] if wake.due_at is None else [wake.due_at]
        if wake.lapses_at is not None:  # by the other clock
            times.append(now + max(0, wake.lapses_at - bus.time.lease_now()))
        served = self._replica.handout.workers.served() | bus.served
        unserved = [(one, at) for one, at in bus.due_handlers(wanted.matches) if one not in served]
        return Wake(wake.number, now, min(times, default=None), tuple(unserved[:MOST_UNSERVED]))

    async def follow(self, wanted: WakeFilter, keepalive: float) -> AsyncGenerator[Wake, None]:
        """The current wake, then every change, conflated; the same again if there was none for so many seconds."""
        first = await self.next_wake(wanted)
        feed = self._feeds.setdefault(wanted, _Feed(first))
        feed.publish(first)
        feed.followers += 1
        if feed.task is None:
            feed.task = asyncio.create_task(self._feed(wanted, feed))
        try:
            while True:
                changed = feed.changed
                yield replace(feed.wake, now=self._replica.bus.time.now())  # a sidecar counts from now
                with suppress(TimeoutError):
                    async with asyncio.timeout(keepalive):
                        await changed.wait()
        finally:
            feed.followers -= 1
            if not feed.followers:
                feed.task.cancel()
                del self._feeds[wanted]

    async def _feed(self, wanted: WakeFilter, feed: _Feed) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_due(wanted)):
                    await self._replica.bus.changed_since(feed.wake.number)
            await asyncio.sleep(self._replica.tuning.wake_conflation)
            feed.publish(self._current(wanted))

    def _until_due(self, wanted: WakeFilter) -> float | None:
        """Seconds until something becomes due by itself, with or without a worker. None: nothing does."""
        time = self._replica.bus.time
        due_at = self._replica.bus.next_after(wanted.matches, time.now())
        return None if due_at is None or time.virtual else (due_at - time.now()) / SECOND

    def drain(self) -> None:
        """Tell all followers that the replica drains."""
        self._waits.drain()
        for feed in self._feeds.values():
            feed.tell()

    # ---- work

    async def process(self, order: ProcessOrder, wait: Micros) -> Processed:
        """Hand out what is due to this replica's workers, and tell the other replicas to do the same."""
        if not self._hands_out:
            raise ProcessDisabled("this server hands out nothing on request; start it with --process")
        if wait > LONGEST_WAIT:
            raise DurationOutOfRange("wait must be at most 60 seconds", field="wait")
        order.wanted.check()
        await self._replica.registry.limits_of(order.wanted.namespace)
        handed = await self._replica.handout.process(order)
        self._replica.relay.order(order)
        ended = await self._ended(handed, wait / SECOND)
        return Processed(len(handed), ended, await self.next_wake(order.wanted))

    async def _ended(self, handed: Collection[Held], seconds: float) -> int:
        """How many of these executions end within so many seconds, or before the replica goes away."""
        holders = self._replica.handout.holders
        try:
            async with self._waits.until(self._waits.ends(seconds)):
                return await holders.ended(handed, seconds)
        except TimeoutError:
            return await holders.ended(handed, SHORTEST_WAIT)
