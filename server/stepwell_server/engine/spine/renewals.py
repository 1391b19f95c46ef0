"""Renewals: acknowledgements and heartbeats of a worker's stream, made durable before they are confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import Verdict
from stepwell_server.domain.values.errors import ShuttingDown
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine.calls import Answer
from stepwell_server.engine.spine.links import LONGEST_RETRY, TRY_AGAIN, Link
from stepwell_server.engine.spine.outbox import Beat
from stepwell_server.engine.spine.turns import LEASE_COST, Turns

ACKS_COLLECTED = 0.02
"""Seconds for which an acknowledgement waits for the task's first frames, which renew its lease all the same."""
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Renewals:
    """The renewals of one heartbeat."""

    number: int
    waiting: set[Held]
    """Those without an answer yet."""
    has_answer: bool = False
    """One of them has an answer: the database takes renewals."""
    is_over: bool = False
    """Nothing is tried again for it."""


class Renewals:
    """The renewals of one connection."""

    def __init__(self, link: Link, shorten: Callable[[Held], None]) -> None:
        self._link = link
        self._shorten = shorten
        """Ends a lease soon, after what was reported under it."""
        self._turns = Turns()
        self._arrived: dict[Held, None] = {}
        """Tasks that were acknowledged a moment ago."""
        self.last_beat = 0
        """Newest heartbeat whose renewals are durable."""

    # ---- acknowledgements

    def acknowledge(self, held: Held) -> None:
        """The task has arrived: its lease is a full one in a moment, or with its first frames."""
        if not self._link.holds(held):
            self._link.lose(held)
            return
        if not self._arrived:
            self._link.spawn(self._acknowledge_arrived())
        self._arrived[held] = None

    def has_frames(self, held: Held) -> None:
        """A task that was acknowledged a moment ago has frames, which renew its lease."""
        self._arrived.pop(held, None)

    def arrived(self) -> list[Held]:
        """Tasks whose acknowledgement is not stored yet. They may have begun."""
        return list(self._arrived)

    async def _acknowledge_arrived(self) -> None:
        await asyncio.sleep(ACKS_COLLECTED)
        while self._arrived:
            held = next(iter(self._arrived))
            await self._acknowledge(held, self._link.committer.tuning.report_retry)
            self._arrived.pop(held, None)

    async def _acknowledge(self, held: Held, pause: float) -> None:
        await self._link.enqueue(self._link.renewal(held), partial(self._acknowledged, held, pause))

    def _acknowledged(self, held: Held, pause: float, done: asyncio.Future[Answer]) -> None:
        if not self._link.holds(held):
            return  # it was taken away meanwhile, and its worker was told why
        if not self._renewed(held, done) and not self._link.has_parted:
            self._link.spawn(self._acknowledge_again(held, pause))

    async def _acknowledge_again(self, held: Held, pause: float) -> None:
        await asyncio.sleep(pause)
        await self._acknowledge(held, min(pause * 2, LONGEST_RETRY))

    # ---- heartbeats

    async def heartbeat(self, number: int, held: Iterable[Held]) -> None:
        """Renew these leases, and say when that is durable. A lease that cannot be renewed is lost alone."""
        named = {*held}
        beat = _Renewals(number, set(filter(self._link.holds, named)))
        async for one in self._turns.over(named - beat.waiting, LEASE_COST):
            self._link.lose(one)
        if not beat.waiting:
            self._confirm(number)
            return
        interval = self._link.committer.rules.times.lease / 3 / SECOND
        asyncio.get_running_loop().call_later(interval, self._end_beat, beat)
        for one in tuple(beat.waiting):
            await self._renew(beat, one, self._link.committer.tuning.report_retry)

    async def _renew(self, beat: _Renewals, held: Held, pause: float) -> None:
        await self._link.enqueue(self._link.renewal(held), partial(self._beat, beat, held, pause))

    async def _renew_again(self, beat: _Renewals, held: Held, pause: float) -> None:
        await asyncio.sleep(pause)
        if held in beat.waiting and not beat.is_over:
            await self._renew(beat, held, min(pause * 2, LONGEST_RETRY))

    def _beat(self, beat: _Renewals, held: Held, pause: float, done: asyncio.Future[Answer]) -> None:
        """One renewal of a heartbeat is answered. With the last one, the whole heartbeat is."""
        if self._renewed(held, done):
            beat.has_answer = True
            self._settle(beat, held)
        elif done.cancelled() or self._link.has_parted or isinstance(done.exception(), ShuttingDown):
            return  # the worker carries its leases to another connection
        elif self._link.holds(held) and isinstance(done.exception(), TRY_AGAIN):
            self._link.spawn(self._renew_again(beat, held, pause))
        else:
            self._settle(beat, held, is_lost=True)

    def _settle(self, beat: _Renewals, *settled: Held, is_lost: bool = False) -> None:
        """These leases of a heartbeat are renewed, or else their worker is told here that they are not."""
        for held in beat.waiting.intersection(settled):
            beat.waiting.discard(held)
            if is_lost:
                self._link.lose(held)
            if not beat.waiting:
                self._confirm(beat.number)

    def _end_beat(self, beat: _Renewals) -> None:
        """Give up the leases of a heartbeat that were not renewed within an interval, for the sake of all the others.

        A confirmed heartbeat renews every lease that it named. So one lease that is not renewed holds up this
        confirmation and the next ones, until the worker gives up everything that it holds. Before that happens, the
        worker hears that this lease is lost, and the lease is shortened to make that true soon. If no lease was
        renewed, or the database is away, nothing is given up: the others are no worse off, and it may be back in time.
        """
        beat.is_over = True
        if beat.has_answer and self._link.committer.db.reachable and not self._link.has_parted:
            lost = tuple(beat.waiting)
            self._settle(beat, *lost, is_lost=True)
            for held in lost:
                log.warning("lease_not_renewed", task_id=held.task_id)
                self._shorten(held)

    def _confirm(self, number: int) -> None:
        self.last_beat = max(self.last_beat, number)
        self._link.send(Beat())

    def _renewed(self, held: Held, done: asyncio.Future[Answer]) -> bool:
        """Act on the answer to a renewal. False: it did not happen."""
        if done.cancelled() or done.exception() is not None:
            return False
        answer = done.result()
        if answer.verdict is Verdict.STALE and not self._link.holds(held):
            self._link.lose(held)
        elif answer.verdict is Verdict.STALE or answer.wake_again:
            self._link.handout.holders.look([held.task_id])  # which also says why it is lost
        return True
