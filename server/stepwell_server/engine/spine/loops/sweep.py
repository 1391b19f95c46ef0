"""The sweep: finds everything even if every hint is lost. It also keeps the lease clock and watches the database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.errors import DatabaseSlow, StepwellError
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.spine.definitions import settle
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.wakes import every
from stepwell_server.storage.database.database import Tx, TxOptions
from stepwell_server.storage.spine import leases, sessions, tasks
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake, next_wakes

WITHOUT_HINTS = 0.25
"""Seconds between sweeps while hints do not work and something is due soon."""
OUT_OF_TOUCH: Micros = 20 * SECOND
"""Between two sweeps. After a longer gap other replicas may have been out of touch as well."""
WHILE_AWAY = 0.5
"""Seconds between sweeps while the database does not answer."""

_OPTIONS = TxOptions(label="sweep", attempts=1, reserved=True)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one sweep."""

    wakes: list[HandlerWake] | None
    """None: they could not be read."""
    lapsed: list[Task]
    given_up: list[Task]
    """Those of which an execution failed because no worker ever took them."""
    gap: bool
    held: bool
    confirmed: set[str]
    served: set[Handler]
    redefined: frozenset[Handler]
    """Those that have another definition now."""
    at: Stamp


class Streams(Protocol):
    """The streams of workers that are connected to this replica."""

    def owners(self) -> list[Owner]:
        """Whose streams are here."""

    def confirmed(self, asked: Sequence[Owner], there: set[str]) -> None:
        """End those of these streams that a newer connection superseded: all but the sessions that are there."""


@dataclass(slots=True)
class Sweep:
    """One replica's sweep. `report` hears after every round whether the database answered.

    Regular writes are part of its transaction: at rest, a replica has no other.
    """

    replica: Replica
    streams: Streams
    report: Callable[[bool], Awaitable[None]]
    _rested_at: Micros = 0
    """When no task was held, as far as this replica saw, by lease_now()."""
    _swept_at: Micros = 0
    """When it last swept, by lease_now()."""
    _in_touch_since: Micros = 0
    """Since when it has swept without a gap, by lease_now()."""

    async def run(self) -> None:
        """Sweep again and again, with jitter, until cancelled."""
        while True:
            await self.once()
            await self.report(self.replica.db.reachable)
            await asyncio.sleep(self._interval() * random.uniform(0.8, 1.2))

    async def once(self) -> Swept | None:
        """Sweep. None: the database did not answer."""
        self.replica.hints.expect_ping()
        was_reachable, mark, owners = self.replica.db.reachable, self.replica.bus.notes.mark(), self.streams.owners()
        try:
            try:
                swept = await self.replica.db.run_tx(partial(self._sweep, owners=owners), _OPTIONS)
            except DatabaseSlow:  # so many names that leases would never lapse
                log.warning("wakes_not_read")
                swept = await self.replica.db.run_tx(partial(self._sweep, owners=owners, wakes=False), _OPTIONS)
        except StepwellError as error:
            if was_reachable:
                event = "sweep_failed" if self.replica.db.reachable else "database_unreachable"
                log.warning(event, reason=error.reason, cause=repr(error.__cause__))
            return None
        if not was_reachable:
            log.info("database_reachable")
        self.replica.committer.timings.note_sweep(swept.lapsed, extended=swept.gap)
        if swept.gap:
            log.warning("leases_extended", why="nobody could renew them for a while")
        if swept.lapsed:
            log.warning("leases_lapsed", tasks=len(swept.lapsed))
        self._in_touch_since, self._swept_at = self._touched_since(swept.at), swept.at.lease_now
        if not swept.held:
            self._rested_at = swept.at.lease_now
        self.streams.confirmed(owners, swept.confirmed)
        self.replica.bus.serve(frozenset(swept.served))
        whole = None if swept.wakes is None else every
        self.replica.bus.refresh(swept.wakes or [], swept.at, mark, whole)
        if swept.lapsed or swept.given_up or swept.redefined:
            told = [task.id for task in swept.lapsed]
            committed = committed_by([*swept.lapsed, *swept.given_up], [], swept.at, told)
            handlers = committed.handlers | swept.redefined
            self.replica.announce(replace(committed, handlers=handlers, redefined=swept.redefined))
        return swept

    def _sweep(self, tx: Tx, owners: Sequence[Owner], *, wakes: bool = True) -> Swept:
        """Without workers a system at rest writes nothing: the lease clock only ticks while something is held."""
        confirmed = sessions.confirm(tx, owners) if owners else set()  # before tasks are locked, as who connects does
        gap, lapsed = False, list[Task]()
        held = leases.any_held(tx)
        if held:
            gap = leases.tick(tx, self.replica.rules.times, self._rested_at)
            lapsed = leases.sweep(tx, self.replica.rules.times)
            if lapsed:
                self.replica.kinds.given_up(tx, {}, lapsed, tasks.stamp(tx))
        self.replica.hints.ping(tx)
        found = next_wakes(tx) if wakes else None
        given_up = self.replica.kinds.give_up(tx, found or [], self.replica.rules)
        if given_up:
            found = next_wakes(tx)
        seen, at = sessions.seen(tx), tasks.stamp(tx)
        is_sure = at.lease_now - self._touched_since(at) >= self.replica.tuning.gone_after * SECOND
        redefined = settle(tx, seen.hosted) if is_sure else frozenset()
        return Swept(found, lapsed, given_up, gap, held, confirmed, seen.served, redefined, at)

    def _touched_since(self, at: Stamp) -> Micros:
        """Since when this replica has been in touch with the database, by lease_now()."""
        has_gap = abs(at.lease_now - self._swept_at) > OUT_OF_TOUCH
        return at.lease_now if has_gap else self._in_touch_since

    def _interval(self) -> float:
        if not self.replica.db.reachable:
            return WHILE_AWAY
        due_at = self.replica.bus.next_wake(every).due_at
        soon = due_at is not None and due_at <= self.replica.bus.time.now() + SECOND
        if soon and not self.replica.hints.working:
            return WITHOUT_HINTS
        return min(self.replica.tuning.sweep_interval, self.replica.rules.times.trusted_gap / SECOND / 2)
