"""Dispatch: gives what is due to the workers that are connected to this replica, and looks after what they hold.

No replica leads and none routes: each claims for its own streams. It is driven by events (a commit, a hint, a credit, a
time that has come); the sweep finds what events missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from stepwell_server.domain.spine.frames import RunNews
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.wakes import ProcessOrder
from stepwell_server.domain.values.errors import DatabaseSlow, DatabaseUnavailable, StepwellError
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.domain.workflows.instances import Step
from stepwell_server.engine.spine.calls import Answer, Claim, GiveBack
from stepwell_server.engine.spine.claims import Claimed, Handed, Rotation, Seat, give_back_lost
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.local_workers import Delivery, Place
from stepwell_server.engine.spine.wakes import WakeBus
from stepwell_server.engine.workflows.book import ref
from stepwell_server.engine.workflows.calls import ReportFrames
from stepwell_server.storage.database.database import TxOptions
from stepwell_server.storage.spine.claims import STICKY
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.runs import RunRef

SHORTEST_PAUSE = 0.025
"""Seconds after a claim that got nothing although something was due; doubled each time, until something changes."""
LONGEST_PAUSE = 5.0
STATES_AT_ONCE = 50
"""Runs whose steps are read together."""
ASKED_AGAIN = 1.0
"""Seconds after which a question about a held run is asked again that the database did not answer."""

_READ_STATE = TxOptions(label="read-state", read_only=True, reserved=True)
_RECOVER = TxOptions(label="recover", reserved=True)

log = structlog.get_logger()


class Dispatcher:
    """One per replica."""

    def __init__(self, committer: Committer, bus: WakeBus, *, embedded: bool) -> None:
        self._committer = committer
        self._bus = bus
        self._embedded = embedded
        self._places: dict[Owner, Place] = {}
        self._holders: dict[int, Place] = {}
        self._births: Counter[Handler] = Counter()
        self._endings: dict[Held, asyncio.Future[bool]] = {}
        """Executions whose end somebody waits for."""
        self._orders: set[asyncio.Task[list[Held]]] = set()
        self._rotation = Rotation()
        self._look_again = asyncio.Event()
        self._reading = asyncio.Lock()

    # ---- workers come and go

    def enter(self, place: Place) -> None:
        """A worker has connected."""
        self._places[place.owner] = place
        self._bus.workers_changed()

    def leave(self, place: Place) -> None:
        """A worker's stream has ended. What it holds is somebody else's care."""
        self._places.pop(place.owner, None)
        self._bus.workers_changed()
        for task_id, held in place.held.items():
            if self._holders.get(task_id) is place:
                del self._holders[task_id]
                self._settle(held, ended=False)

    def close(self) -> None:
        """Hand out nothing more: the replica goes away."""
        self._embedded = False

    def grant(self, place: Place, credits: int) -> None:
        """A worker can take more tasks."""
        place.credits += credits
        self._look_again.set()

    # ---- what workers hold

    def hold(self, place: Place, held: Held) -> None:
        """A worker holds this task through its present stream."""
        place.held[held.task_id] = held
        self._holders[held.task_id] = place

    def drop(self, place: Place, held: Held, *, ended: bool) -> None:
        """A worker no longer holds this task: its execution has ended, or it was taken away."""
        self._settle(held, ended=ended)
        if place.held.get(held.task_id) == held:
            del place.held[held.task_id]
            place.timers.pop(held.task_id, None)
            place.unsure.discard(held.task_id)
            if self._holders.get(held.task_id) is place:
                del self._holders[held.task_id]

    def set_timer(self, place: Place, held: Held, at: Micros | None) -> None:
        """Something of a held run happens by itself at this time."""
        if at is None or held.task_id not in place.held:
            place.timers.pop(held.task_id, None)
        elif place.timers.get(held.task_id) != at:
            place.timers[held.task_id] = at
            self._look_again.set()

    def look(self, task_ids: Iterable[int], *, tell_all: bool = False) -> None:
        """Something came for these tasks, or they were taken away: tell those of our workers that hold them."""
        for task_id in task_ids:
            place = self._holders.get(task_id)
            if place is not None:
                self._ask(place, place.held[task_id], tell_all=tell_all)

    def _ask(self, place: Place, held: Held, *, tell_all: bool = False) -> None:
        place.timers.pop(held.task_id, None)
        unsure = tell_all or held.task_id in place.unsure
        if place.is_full:
            self._ask_later(place, held)
            return
        try:
            look = ReportFrames(held, place.owner.session_id, connection=place.owner.connection, tell_all=unsure)
            news = self._committer.enqueue(look, place.sender)
        except StepwellError as error:
            log.warning("look_failed", reason=error.reason)
            self._ask_later(place, held)
            return
        news.add_done_callback(lambda done: self._heard(place, held, done, told_all=unsure))

    def _heard(self, place: Place, held: Held, done: asyncio.Future[RunNews], *, told_all: bool) -> None:
        if done.cancelled() or place.held.get(held.task_id) != held:
            return
        if done.exception() is not None:
            self._ask_later(place, held)
            return
        if told_all:  # another question may have found, and lost, what this one says nothing of
            place.unsure.discard(held.task_id)
        place.tell(held, done.result())

    def _ask_later(self, place: Place, held: Held) -> None:
        """The answer did not come, though what it was about may be committed."""
        place.unsure.add(held.task_id)
        asyncio.get_running_loop().call_later(ASKED_AGAIN, self._ask_if_held, place, held)

    def _ask_if_held(self, place: Place, held: Held) -> None:
        if self._holders.get(held.task_id) is place and place.held.get(held.task_id) == held:
            self._ask(place, held)

    def served(self) -> set[Handler]:
        """Whom the workers of this replica host."""
        return {handler for place in self._places.values() for handler in place.handlers}

    # ---- newborn work

    def reserve(self, handler: Handler) -> Owner | None:
        """A worker for an instance that is about to be created, unless older work of that name may be waiting."""
        if self._embedded and not self._births[handler] and not self._is_due(handler):
            able = [one for one in self._places.values() if one.takes_more and handler in one.handlers]
            if able:
                place = max(able, key=lambda one: one.credits)
                place.credits -= 1
                place.births += 1
                return place.owner
        self._births[handler] += 1
        return None

    def born(
        self, handler: Handler, seat: Owner | None, handed: Handed | None, asked_at: float, *, is_lost: bool = False
    ) -> None:
        """What became of it: handed out, or stored for later, or refused; or nobody knows."""
        if seat is None:
            self._births[handler] -= 1
            return
        place = self._places.get(seat)
        if place is not None:
            place.births -= 1
            self._came_back(place, is_lost=is_lost)
        if handed is not None:
            self._hand(handed, (), asked_at)
        elif place is not None:
            self.grant(place, 1)

    def _is_due(self, handler: Handler) -> bool:
        due_at = self._bus.due_at(handler)
        return due_at is not None and due_at <= self._bus.time.now()

    # ---- the loop

    async def run(self) -> None:
        """Claim what is due and fire what is over, until cancelled."""
        pause = SHORTEST_PAUSE
        while True:
            self._look_again.clear()
            number = self._bus.number
            self._fire()
            await self._recover()
            looked_at = self._bus.time.now()
            if not self._something_due():
                await self._wait(number, self._until_next(looked_at))
            elif await self._claim():
                pause = SHORTEST_PAUSE
            else:
                await self._wait(number, _sooner(pause, self._until_next(looked_at)))
                pause = SHORTEST_PAUSE if self._bus.number != number else min(pause * 2, LONGEST_PAUSE)

    def _fire(self) -> None:
        now = self._bus.time.now()
        for place in self._places.values():
            for task_id in [one for one, at in place.timers.items() if at <= now]:
                self._ask(place, place.held[task_id])

    def _something_due(self) -> bool:
        return self._embedded and any(self._is_due(handler) for handler in self._wanted())

    def _wanted(self) -> set[Handler]:
        return {handler for place in self._places.values() if place.takes_more for handler in place.wanted}

    def _until_next(self, looked_at: Micros) -> float | None:
        """Seconds until the next time that this replica waits for: of a run that is held, or of work that was not due
        when it looked. What has become due since counts, too: no claim has asked for it."""
        times = [at for handler in self._wanted() if (at := self._bus.due_at(handler)) is not None and at > looked_at]
        due = self._seconds_until(times if self._embedded else [])
        return _sooner(due, self._seconds_until([at for one in self._places.values() for at in one.timers.values()]))

    def _seconds_until(self, times: Sequence[Micros]) -> float | None:
        """None: none of them comes by itself; a virtual clock is moved, and whoever moves it says so."""
        if not times or (self._bus.time.virtual and min(times) > self._bus.time.now()):
            return None
        return max(0.0, (min(times) - self._bus.time.now()) / SECOND)

    async def _wait(self, number: int, seconds: float | None) -> None:
        """Until something changes, or so long."""
        changes: list[Awaitable[object]] = [self._look_again.wait(), self._bus.changed_since(number)]
        waiting = [asyncio.ensure_future(change) for change in changes]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _claim(self, order: ProcessOrder | None = None) -> Sequence[Handed]:
        """Claim for all our workers at once. Returns what they were given.

        Where more is due than one claim asks for, the next ask for the rest: an order until it is carried out, else
        until something is given.
        """
        given: list[Handed] = []
        wanted = {one for seat in self._seats(order) for one in seat.handlers}
        due = {one for one in wanted if self._is_due(one)}
        for asked in self._rotation.of(due, () if order is None else wanted - due):
            rest = None if order is None else replace(order, max_tasks=order.max_tasks - len(given))
            given += await self._claim_of(asked, rest)
            if len(given) >= (1 if order is None else order.max_tasks):
                break
        return given

    async def _claim_of(self, asked: frozenset[Handler], order: ProcessOrder | None) -> Sequence[Handed]:
        """Claim of these handlers, with the workers' credits on the table meanwhile."""
        found = [replace(seat, handlers=seat.handlers & asked) for seat in self._seats(order)]
        seats = [seat for seat in found if seat.handlers]
        if not seats:
            return ()
        for seat in seats:
            self._places[seat.owner].credits -= seat.credits
            self._places[seat.owner].lent += seat.credits
        claimed, is_lost, asked_at = Claimed(), False, asyncio.get_running_loop().time()
        try:
            patience = 0 if self._bus.time.virtual else STICKY
            most = None if order is None else order.max_tasks
            claimed = await self._committer.submit(Claim(seats, patience, most))
        except StepwellError as error:
            log.debug("claim_failed", reason=error.reason)
            is_lost = isinstance(error, DatabaseUnavailable)
        max_steps = 0 if order is None else order.max_steps
        given = await self._deliver([replace(one, max_steps=max_steps) for one in claimed.handed], asked_at)
        used = Counter(one.task.owner for one in claimed.handed)
        for seat in seats:
            place = self._places.get(seat.owner)
            if place is not None:
                place.lent -= seat.credits
                place.credits += seat.credits - used[seat.owner]
                self._came_back(place, is_lost=is_lost)
        return given

    def _came_back(self, place: Place, *, is_lost: bool) -> None:
        """What was on its way to a worker has arrived, or is lost: then what it may hold must be returned."""
        place.has_lost_claim |= is_lost
        if place.has_lost_claim:
            self._look_again.set()

    def _seats(self, order: ProcessOrder | None) -> list[Seat]:
        """Workers that can take something of what is to be handed out."""
        seats = []
        for place in self._places.values():
            wanted = place.wanted if order is None else frozenset(filter(order.wanted.matches, place.wanted))
            if place.takes_more and wanted:
                seats.append(Seat(place.owner, wanted, place.credits, dict(place.shares)))
        return seats

    # ---- on request

    async def process(self, order: ProcessOrder) -> list[Held]:
        """Hand out what is due, once, whoever dispatches here otherwise. Returns what was.

        Whoever asked may go away meanwhile: what is claimed is delivered, and credits are given back, all the same.
        """
        return await asyncio.shield(self.take_order(order))

    def take_order(self, order: ProcessOrder) -> asyncio.Task[list[Held]]:
        """Somebody was asked, here or at another replica, to hand this out: so do we, for our own workers."""
        task = asyncio.create_task(self._process(order))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        return task

    async def _process(self, order: ProcessOrder) -> list[Held]:
        handed = [Held(one.task.id, one.task.fence) for one in await self._claim(order)]
        return [one for one in handed if one.task_id in self._holders]

    async def ended(self, handed: Iterable[Held], seconds: float) -> int:
        """How many of these executions have ended within so many seconds: suspended, finished or failed."""
        if not seconds:
            return 0
        waits = {one: self._endings.setdefault(one, asyncio.get_running_loop().create_future()) for one in handed}
        for one, wait in waits.items():
            if one.task_id not in self._holders and not wait.done():
                wait.set_result(True)  # before we could ask
        try:
            if waits:
                await asyncio.wait(waits.values(), timeout=seconds)
        finally:
            for one in waits:
                self._endings.pop(one, None)
        return sum(wait.done() and wait.result() for wait in waits.values())

    def _settle(self, held: Held, *, ended: bool) -> None:
        wait = self._endings.get(held)
        if wait is not None and not wait.done():
            wait.set_result(ended)

    async def _recover(self) -> None:
        """Return what was leased by a claim whose answer was lost. Until then those workers get nothing more.

        What is still on its way to a worker would look as if it were lost, so its arrival is waited for.
        """
        unsure = [one for one in self._places.values() if one.has_lost_claim and not (one.births or one.lent)]
        if not unsure:
            return
        known = {place.owner: frozenset(place.held) for place in unsure}
        try:
            returned, at = await self._committer.db.run_tx(lambda tx: give_back_lost(tx, known), _RECOVER)
        except StepwellError as error:
            log.debug("lost_claims_not_returned", reason=error.reason)
            asyncio.get_running_loop().call_later(ASKED_AGAIN, self._look_again.set)
            return
        for place in unsure:
            place.has_lost_claim = False
        if returned:
            log.info("lost_claims_returned", tasks=len(returned))
            self._committer.on_commit(committed_by(returned, [], at))

    async def _deliver(self, handed: Sequence[Handed], asked_at: float) -> list[Handed]:
        """Give all of them to their workers. Returns those that could be given."""
        given = [one for one in handed if not _needs_state(one) and self._hand(one, one.resolved, asked_at)]
        rest = [one for one in handed if _needs_state(one)]
        for first in range(0, len(rest), STATES_AT_ONCE):
            given += await self._deliver_with_state(rest[first : first + STATES_AT_ONCE], asked_at)
        return given

    async def _deliver_with_state(self, handed: Sequence[Handed], asked_at: float) -> list[Handed]:
        """Runs that their workers do not have in memory, with all their steps: those that can be read in time."""
        states: Mapping[int, tuple[Step, ...]] = {}
        try:
            states = await self._states([ref(one.task) for one in handed])
        except DatabaseSlow as error:
            if len(handed) > 1:
                middle = len(handed) // 2
                given = await self._deliver_with_state(handed[:middle], asked_at)
                return given + await self._deliver_with_state(handed[middle:], asked_at)
            log.warning("state_not_read", task_id=handed[0].task.id, reason=error.reason)
        except Exception as error:  # whatever it was: the tasks go back, and the loop goes on
            log.warning("state_not_read", error=repr(error))
        return [one for one in handed if self._hand(one, states.get(one.task.id), asked_at)]

    async def _states(self, runs: Sequence[RunRef]) -> dict[int, tuple[Step, ...]]:
        """All steps of these runs. Nobody changes them while they are leased. Read one after the other: the connections
        of which this takes one are few, and groups need them more."""
        async with self._reading:
            found = await self._committer.db.run_tx(lambda tx: run_store.all_steps(tx, runs), _READ_STATE)
        return {run.task_id: tuple(steps) for run, steps in found.items()}

    def _hand(self, handed: Handed, steps: tuple[Step, ...] | None, asked_at: float) -> bool:
        """Give a task to its worker, if that is there and reads, all is known that it must know, the lease is young.

        False: it is not. Its lease is for the ack window and began after we asked for it. If we stood still since, or
        the commit did, somebody else may have the task by now, and of an execution under our lease nobody would know.
        """
        assert handed.task.owner is not None
        place = self._places.get(handed.task.owner)
        if place is None or place.is_full or steps is None or self._is_too_late(asked_at):
            self.give_back(handed)
            if place is not None:
                self.grant(place, 1)
            return False
        delivery = Delivery(handed, steps)
        self.hold(place, delivery.held)
        self.set_timer(place, delivery.held, handed.next_timer)
        place.deliver([delivery])
        return True

    def _is_too_late(self, asked_at: float) -> bool:
        """Whether so much of the ack window has passed that the rest may not do for the worker's acknowledgement."""
        waited = asyncio.get_running_loop().time() - asked_at
        return waited * SECOND > self._committer.rules.times.ack_window / 2

    def give_back(self, handed: Handed) -> asyncio.Future[Answer] | None:
        """It never reached its worker: as if it had not been claimed. None: the end of the ack window must do it."""
        assert handed.task.owner is not None
        held = Held(handed.task.id, handed.task.fence)
        try:
            sender = Sender(handed.task.handler.namespace, handed.task.owner.session_id)
            answer = self._committer.enqueue(GiveBack(held=held, owner=handed.task.owner), sender)
        except StepwellError as error:
            log.warning("give_back_failed", reason=error.reason)
            return None
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer


def _sooner(one: float | None, other: float | None) -> float | None:
    """The shorter of two waits; None is for ever."""
    return min((seconds for seconds in (one, other) if seconds is not None), default=None)


def _needs_state(handed: Handed) -> bool:
    return handed.hook is None and not handed.is_fresh and not handed.known_revision
