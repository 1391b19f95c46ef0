"""Use cases of the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from dataclasses import dataclass
from functools import partial

from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database import clock as store
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.spine import requests, tasks
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import next_wakes

HUNG = 0.5
"""Seconds of real time without any change after which what is running is taken to wait for the clock itself."""
HUNG_LOOKS = 25
"""How often it must have been looked for a change, so that on a busy machine it takes longer."""
LOOK = 0.002
MOST_NAMED = 10
"""How many of the tasks that still execute are named."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where an advance has come to."""

    now: Micros
    arrived: bool
    executing: tuple[str, ...] = ()
    """The tasks that it waits for, in words, if it has not arrived."""


@dataclass(frozen=True, slots=True)
class _View:
    """The facts that decide how far a virtual clock may go."""

    at: Stamp
    held: int
    """Tasks that a worker holds."""
    next_due: Micros | None
    next_timer: Micros | None
    revision: int
    """Changes whenever anything does."""
    gives_up_at: Micros | None
    """When something fails because no worker ever took it."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock that decides: read it, and where it is virtual, move it."""

    replica: Replica

    async def read(self) -> ClockReading:
        """Both clocks, now."""
        return await self.replica.db.run_tx(store.read, READ)

    async def advance(
        self, asked: Asked, *, by: Micros | None = None, to: Micros | None = None, hangs_after: float
    ) -> Stand:
        """Move a virtual clock forward, from due time to due time, and let what is due there be done.

        Work may still be running when the call must answer. Work without any change for `hangs_after` seconds of real
        time is taken to hang until its timeout.
        """
        target = await self._target(asked, by, to)
        ends = asyncio.get_running_loop().time() + self.replica.tuning.longest_advance
        while True:
            view = await self._settled(ends, hangs_after)
            if view is None:
                return await self.replica.db.run_tx(_still_on_the_way, READ)
            if view.at.now >= target:
                return Stand(view.at.now, True)
            await self._move(min(target, self._next_stop(view, target)))

    async def _target(self, asked: Asked, by: Micros | None, to: Micros | None) -> Micros:
        """Where to go, fixed when the request is first seen: a repetition goes to the same instant, not further."""
        asked.check()

        def work(tx: Tx) -> Micros:
            return requests.once(tx, "", asked, lambda: store.lock(tx).moved(by=by, to=to), dump=int, load=int)

        return await self.replica.db.run_tx(work)

    async def _move(self, instant: Micros) -> None:
        def work(tx: Tx) -> Stamp:
            if store.lock(tx).now < instant:
                store.move(tx, instant)
            return tasks.stamp(tx)

        self.replica.bus.clock_moved(await self.replica.db.run_tx(work))

    def _next_stop(self, view: _View, target: Micros) -> Micros:
        """The next instant at which something happens by itself."""
        stops = (view.next_due, view.next_timer, view.gives_up_at)
        return min((at for at in stops if at is not None and at > view.at.now), default=target)

    async def _settled(self, ends: float, hangs_after: float) -> _View | None:
        """Wait until all that is due is done. None: it is not, and the call must answer.

        A task that is still held when nothing has changed for a while waits for the clock: a body that hangs until
        its timeout. Then the clock goes on.
        """
        loop = asyncio.get_running_loop()
        before, quiet_since, looks = None, loop.time(), 0
        while True:
            served = self.replica.handout.workers.served()
            view = await self.replica.db.run_tx(partial(_look, served=served, kinds=self.replica.kinds), READ)
            if view.gives_up_at is not None and view.gives_up_at <= view.at.now:
                await self._give_up()
                continue
            if not view.held and not self._claimable(view):
                return view
            if before is None or view.revision != before.revision:
                before, quiet_since, looks = view, loop.time(), 0
            hung = loop.time() - quiet_since > hangs_after and looks > HUNG_LOOKS
            if hung and view.next_timer is not None and not self._claimable(view):
                return view
            looks += 1
            if loop.time() > ends:
                return None
            await asyncio.sleep(LOOK)

    async def _give_up(self) -> None:
        """Give up work as a sweep would do in a moment."""
        kinds, rules = self.replica.kinds, self.replica.rules

        def work(tx: Tx) -> tuple[list[Task], Stamp]:
            return kinds.give_up(tx, next_wakes(tx), rules), tasks.stamp(tx)

        failed, at = await self.replica.db.run_tx(work)
        self.replica.announce(committed_by(failed, [], at))

    def _claimable(self, view: _View) -> bool:
        """Whether something is due that a worker of this replica could take."""
        return view.next_due is not None and view.next_due <= view.at.now


def _look(tx: Tx, served: Set[Handler], kinds: Kinds) -> _View:
    dialect.take_snapshot(tx)  # what is suspended between two statements would be seen by neither
    wakes = next_wakes(tx)
    held = tasks.held(tx)
    due = min((one.due_at for one in wakes if one.due_at is not None and one.handler in served), default=None)
    timers = [kinds.next_timer(tx), *(one.ends_at for task in held for one in load_open(task.open_steps))]
    timer = min((at for at in timers if at is not None), default=None)
    revision = sum(task.revision + task.fence for task in held)
    return _View(tasks.stamp(tx), len(held), due, timer, revision, kinds.gives_up_at(wakes))


def _still_on_the_way(tx: Tx) -> Stand:
    executing = tuple(_words_for(task) for task in tasks.held(tx)[:MOST_NAMED])
    return Stand(store.read(tx).now, False, executing)


def _words_for(task: Task) -> str:
    steps = ", ".join(repr(one.name) for one in load_open(task.open_steps) if one.name)
    return f"{task.handler.name}/{task.key}" + (f" (step {steps})" if steps else "")
