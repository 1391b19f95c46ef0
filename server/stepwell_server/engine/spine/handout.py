"""The hand-out: claims what is due for the workers that are connected to this replica, and fires what is over.

No replica leads and none routes: each claims for its own streams. It is driven by events (a commit, a hint, a credit, a
time that has come); the sweep finds what events missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.wakes import ProcessOrder
from stepwell_server.domain.values.errors import DatabaseUnavailable, StepwellError
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.spine.assignments import Ask, Capacity, Claimed
from stepwell_server.engine.spine.births import Created, Reservation
from stepwell_server.engine.spine.calls import Claim
from stepwell_server.engine.spine.claims import Rotation, give_back_lost
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.deliveries import Deliveries
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.holders import Holders
from stepwell_server.engine.spine.local_workers import LocalWorker, LocalWorkers
from stepwell_server.engine.spine.wakes import WakeBus
from stepwell_server.storage.database.database import TxOptions
from stepwell_server.storage.spine.claims import STICKY

LONGEST_PAUSE = 5.0
_RECOVER = TxOptions(label="recover", reserved=True)

log = structlog.get_logger()


class Handout:
    """One per replica."""

    def __init__(self, committer: Committer, bus: WakeBus, *, embedded: bool) -> None:
        self._committer = committer
        self._bus = bus
        self._embedded = embedded
        self._births: Counter[Handler] = Counter()
        """Tasks that are about to be created without a worker."""
        self._orders: set[asyncio.Task[list[Held]]] = set()
        self._rotation = Rotation()
        self.workers = LocalWorkers(bus)
        self.holders = Holders(committer, self.workers.changed.set)
        self.deliveries = Deliveries(committer, self.workers, self.holders)

    def leave(self, worker: LocalWorker) -> None:
        """A worker's stream has ended. Its connection looks after what it holds."""
        self.workers.leave(worker)
        self.holders.leave(worker)

    def close(self) -> None:
        """Hand out nothing more: the replica goes away."""
        self._embedded = False

    # ---- newborn work

    def reserve(self, handler: Handler) -> Reservation:
        """Keep a worker free for a task that is about to be created, unless older work of that name may be waiting."""
        if self._embedded and not self._births[handler] and not self._bus.is_due(handler):
            able = [worker for worker in self.workers.able() if handler in worker.handlers]
            if able:
                worker = max(able, key=lambda worker: worker.credits)
                worker.credits -= 1
                worker.births += 1
                return Reservation(handler, worker.owner)
        self._births[handler] += 1
        return Reservation(handler, None)

    def release(self, reservation: Reservation, answer: asyncio.Future[Created[Any]] | None) -> None:
        """Let go of the worker that was kept free, unless the task was created for it. None: it was never asked for."""
        if reservation.holder is None:
            self._births[reservation.handler] -= 1
            return
        worker = self.workers.get(reservation.holder)
        if worker is None:
            return
        worker.births -= 1
        error = None if answer is None or answer.cancelled() else answer.exception()
        self.workers.came_back(worker, is_lost=isinstance(error, DatabaseUnavailable))
        if answer is None or answer.cancelled() or error is not None or not answer.result().is_new:
            self.workers.grant(worker, 1)

    # ---- the loop

    async def run(self) -> None:
        """Claim what is due and fire what is over, until cancelled."""
        shortest = self._committer.tuning.claim_pause
        pause = shortest
        while True:
            self.workers.changed.clear()
            number = self._bus.number
            self._fire()
            await self._recover()
            looked_at = self._bus.time.now()
            if not self._something_due():
                await self._wait(number, self._until_next(looked_at))
            elif await self._claim():
                pause = shortest
            else:
                await self._wait(number, _sooner(pause, self._until_next(looked_at)))
                pause = shortest if self._bus.number != number else min(pause * 2, LONGEST_PAUSE)

    def _fire(self) -> None:
        now = self._bus.time.now()
        for worker in self.workers:
            for task_id in [task_id for task_id, at in worker.timers.items() if at <= now]:
                self.holders.ask(worker, worker.held[task_id])

    def _something_due(self) -> bool:
        return self._embedded and any(self._bus.is_due(handler) for handler in self.workers.wanted())

    def _until_next(self, looked_at: Micros) -> float | None:
        """Seconds until a held task or other work becomes due.

        Work that has become due after `looked_at` counts, too: no claim has asked for it.
        """
        times = [
            at for handler in self.workers.wanted() if (at := self._bus.due_at(handler)) is not None and at > looked_at
        ]
        due = self._seconds_until(times if self._embedded else [])
        timers = [at for worker in self.workers for at in worker.timers.values()]
        return _sooner(due, self._seconds_until(timers))

    def _seconds_until(self, times: Sequence[Micros]) -> float | None:
        """None: none of them comes by itself; a virtual clock is moved, and its mover says so."""
        if not times or (self._bus.time.virtual and min(times) > self._bus.time.now()):
            return None
        return max(0.0, (min(times) - self._bus.time.now()) / SECOND)

    async def _wait(self, number: int, seconds: float | None) -> None:
        """Until something changes, or so long."""
        changes: list[Awaitable[object]] = [self.workers.changed.wait(), self._bus.changed_since(number)]
        waiting = [asyncio.ensure_future(change) for change in changes]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for change in waiting:
                change.cancel()

    # ---- claims

    async def _claim(self, order: ProcessOrder | None = None) -> list[Held]:
        """Claim for all our workers at once. Returns what they were given.

        Where more is due than one claim asks for, the next claims ask for the rest. They end when the order is carried
        out, or without an order when something was given.
        """
        given: list[Held] = []
        wanted = {handler for worker in self.workers.able() for handler in _wanted_of(worker, order)}
        due = {handler for handler in wanted if self._bus.is_due(handler)}
        for asked in self._rotation.of(due, () if order is None else wanted - due):
            rest = None if order is None else replace(order, max_tasks=order.max_tasks - len(given))
            given += await self._claim_of(asked, rest)
            if len(given) >= (1 if order is None else order.max_tasks):
                break
        return given

    async def _claim_of(self, asked: frozenset[Handler], order: ProcessOrder | None) -> list[Held]:
        """Claim of these handlers, with the workers' credits on the table meanwhile."""
        hosted = [(worker, _wanted_of(worker, order) & asked) for worker in self.workers.able()]
        lent = [worker.lend(handlers) for worker, handlers in hosted if handlers]
        if not lent:
            return []
        claimed, is_lost = Claimed(), False
        try:
            claimed = await self._committer.submit(Claim(self._ask(lent, order)))
        except StepwellError as error:
            log.debug("claim_failed", reason=error.reason)
            is_lost = isinstance(error, DatabaseUnavailable)
        given = [assignment.held for assignment in claimed.assigned]
        await self.deliveries.delivered(given)
        used = Counter(assignment.holder for assignment in claimed.assigned)
        for capacity in lent:
            worker = self.workers.get(capacity.owner)
            if worker is not None:
                worker.take_back(capacity, used[capacity.owner])
                self.workers.came_back(worker, is_lost=is_lost)
        return [held for held in given if held in self.holders]

    def _ask(self, lent: Sequence[Capacity], order: ProcessOrder | None) -> Ask:
        patience = 0 if self._bus.time.virtual else STICKY
        if order is None:
            return Ask(lent, patience)
        return Ask(lent, patience, order.max_tasks, order.max_steps)

    async def process(self, order: ProcessOrder) -> list[Held]:
        """Hand out what is due, once, on request. Returns what was.

        The caller may go away meanwhile: what is claimed is delivered, and credits are given back, all the same.
        """
        return await asyncio.shield(self.take_order(order))

    def take_order(self, order: ProcessOrder) -> asyncio.Task[list[Held]]:
        """This replica or another was asked to hand this out: do so for our own workers."""
        task = asyncio.create_task(self._claim(order))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        return task

    async def _recover(self) -> None:
        """Return what was leased by a claim whose answer was lost. Until then those workers get nothing more.

        A task that is still on its way to a worker would look lost, so its arrival is waited for.
        """
        unsure = [one for one in self.workers if one.has_lost_claim and not (one.births or one.lent)]
        if not unsure:
            return
        known = {worker.owner: frozenset(worker.held) for worker in unsure}
        kinds, db = self._committer.kinds, self._committer.db
        try:
            returned, at = await db.run_tx(lambda tx: give_back_lost(tx, known, kinds), _RECOVER)
        except StepwellError as error:
            log.debug("lost_claims_not_returned", reason=error.reason)
            asyncio.get_running_loop().call_later(self._committer.tuning.question_retry, self.workers.changed.set)
            return
        for worker in unsure:
            worker.has_lost_claim = False
        if returned:
            log.info("lost_claims_returned", tasks=len(returned))
            self._committer.on_commit(committed_by(returned, [], at))


def _wanted_of(worker: LocalWorker, order: ProcessOrder | None) -> frozenset[Handler]:
    """The handlers of which a worker takes what is to be handed out."""
    return worker.wanted if order is None else frozenset(filter(order.wanted.matches, worker.wanted))


def _sooner(one: float | None, other: float | None) -> float | None:
    """The shorter of two waits; None is for ever."""
    return min((seconds for seconds in (one, other) if seconds is not None), default=None)
