"""A worker's stream, as the engine sees it: what comes in is committed, what is to go out waits in an outbox."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from stepwell_server.domain.spine.frames import Frame, RunNews
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Verdict
from stepwell_server.domain.values.errors import (
    Conflict,
    DatabaseUnavailable,
    InvalidField,
    LeaseLost,
    ServerBusy,
    ShuttingDown,
    StepwellError,
)
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine.calls import Answer, GiveBack, Leave, Renew, Shorten
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.group import HotCall
from stepwell_server.engine.spine.handout import Dispatcher
from stepwell_server.engine.spine.local_workers import Delivery, Place
from stepwell_server.engine.spine.outbox import Beat, Draining, Message, News, Outbox, Refused, State
from stepwell_server.engine.workflows.calls import ReportFrames

MOST_CREDIT = 1000
ACKS_COLLECTED = 0.02
"""Seconds for which an acknowledgement waits for the task's first frames, which renew its lease all the same."""
SHORTEST_RETRY = 0.1
LONGEST_RETRY = 2.0
LANES_BYTES = 16 * 1024 * 1024
"""Frames of a worker that wait for the database, in all, before no more are read."""
MOST_STRANGE = 100
"""Reports about what a worker does not hold that wait for the database, before no more are read."""

_TRY_AGAIN = (DatabaseUnavailable, ServerBusy, Conflict)

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


@dataclass(slots=True, eq=False)
class _Asked:
    """A state that is on its way to its worker."""

    is_outdated: bool = False
    """The worker has reported something since it asked."""
    is_asked_again: bool = False
    """And then it has asked again."""


@dataclass(slots=True, eq=False)
class Connection:
    """One stream of a worker. Frames of one task are committed in the order in which they came, whatever happens."""

    owner: Owner
    place: Place
    committer: Committer
    dispatcher: Dispatcher
    read_state: Callable[[Held], Awaitable[Delivery]]
    outbox: Outbox
    end: StepwellError | None = None
    """Why the stream must end."""
    is_draining: bool = False
    last_beat: int = 0
    """Newest heartbeat whose renewals are durable."""
    _arrived: dict[Held, None] = field(default_factory=dict)
    """Tasks that were acknowledged a moment ago."""
    _lanes: dict[int, deque[ReportFrames | Shorten]] = field(default_factory=dict)
    """By task: what the database could not take, in the order in which it shall."""
    _retries: set[asyncio.Task[None]] = field(default_factory=set)
    _strange: set[asyncio.Future[RunNews]] = field(default_factory=set)
    """Answers to reports about what it does not hold: perhaps it did, and repeats how that ended."""
    _asked: dict[Held, _Asked] = field(default_factory=dict)
    """Runs whose state is on its way."""
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One state is read at a time, when there is room for it."""
    _has_parted: bool = False

    # ---- out

    def send(self, *messages: Message) -> None:
        """Put messages into the outbox."""
        for message in messages:
            self.outbox.put(message)
        self.place.is_full = self.outbox.is_full

    async def take(self) -> list[Message]:
        """What goes out next, once something does: what went out before is written. Raises why the stream must end."""
        self.outbox.written()
        if self.place.is_full and not self.outbox.is_full:
            self.place.is_full = False
            self.dispatcher.grant(self.place, 0)  # there may be something to take now
        await self.outbox.ready.wait()
        self.outbox.ready.clear()
        if self.end is not None:
            raise self.end
        return self.outbox.take()

    def stop(self, why: StepwellError) -> None:
        """End the stream with this."""
        self.end = why
        self.outbox.ready.set()

    def drain(self) -> None:
        """Say that the replica goes away. Leases keep their length: the worker carries them to another."""
        self.is_draining = True
        self.place.credits = 0
        self.send(Draining())

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Tasks for the worker."""
        self.send(*deliveries)

    def tell(self, held: Held, news: RunNews) -> None:
        """News of a run for the worker."""
        if news.stale is not None or any(answer.released for answer in news.answers):
            self.dispatcher.drop(self.place, held, ended=news.stale is None)
        elif held.task_id in self.place.held:
            self.dispatcher.set_timer(self.place, held, news.next_timer)
        self.committer.timings.stale += news.stale is not None
        if news.answers or news.resolved or news.timed_out or news.stale is not None:
            self.send(News(held, news))

    # ---- in

    def grant(self, tasks: int) -> None:
        """More tasks can be sent; what exceeds the most is dropped."""
        if tasks <= 0:
            self.send(Refused(InvalidField("credit must be at least 1", field="tasks")))
            return
        place = self.place
        room = max(0, MOST_CREDIT - place.credits - place.lent - place.births - len(place.held))
        if not self.is_draining:
            self.dispatcher.grant(place, min(tasks, room))

    def acknowledge(self, held: Held) -> None:
        """The task has arrived: its lease is a full one in a moment, or with its first frames."""
        if not self.holds(held):
            self._lose(held)
            return
        if not self._arrived:
            self._spawn(self._acknowledge_arrived())
        self._arrived[held] = None

    def holds(self, held: Held) -> bool:
        """Whether the worker holds this through the stream."""
        return self.place.held.get(held.task_id) == held

    def _lose(self, held: Held) -> None:
        """Tell the worker that a lease is lost. Whatever a session holds it holds through its newest stream."""
        self.tell(held, RunNews(stale=held.lost()))

    async def _acknowledge_arrived(self) -> None:
        await asyncio.sleep(ACKS_COLLECTED)
        while self._arrived:
            held = next(iter(self._arrived))
            await self._acknowledge(held, SHORTEST_RETRY)
            self._arrived.pop(held, None)

    async def _acknowledge(self, held: Held, pause: float) -> None:
        await self._enqueue(self._renewal(held), partial(self._acknowledged, held, pause))

    def _acknowledged(self, held: Held, pause: float, done: asyncio.Future[Answer]) -> None:
        if not self.holds(held):
            return  # it was taken away meanwhile, and its worker was told why
        if not self._renewed(held, done) and not self._has_parted:
            self._spawn(self._acknowledge_again(held, pause))

    async def _acknowledge_again(self, held: Held, pause: float) -> None:
        await asyncio.sleep(pause)
        await self._acknowledge(held, min(pause * 2, LONGEST_RETRY))

    async def heartbeat(self, number: int, held: Iterable[Held]) -> None:
        """Renew these leases, and say when that is durable. One that cannot be renewed is lost alone."""
        named = {*held}
        beat = _Renewals(number, set(filter(self.holds, named)))
        for one in named - beat.waiting:
            self._lose(one)
        if not beat.waiting:
            self._confirm(number)
            return
        interval = self.committer.rules.times.lease / 3 / SECOND
        asyncio.get_running_loop().call_later(interval, self._end_beat, beat)
        for one in tuple(beat.waiting):
            await self._renew(beat, one, SHORTEST_RETRY)

    async def _renew(self, beat: _Renewals, held: Held, pause: float) -> None:
        await self._enqueue(self._renewal(held), partial(self._beat, beat, held, pause))

    async def _renew_again(self, beat: _Renewals, held: Held, pause: float) -> None:
        await asyncio.sleep(pause)
        if held in beat.waiting and not beat.is_over:
            await self._renew(beat, held, min(pause * 2, LONGEST_RETRY))

    def _beat(self, beat: _Renewals, held: Held, pause: float, done: asyncio.Future[Answer]) -> None:
        """One renewal of a heartbeat is answered. With the last one, the whole heartbeat is."""
        if self._renewed(held, done):
            beat.has_answer = True
            self._settle(beat, held)
        elif done.cancelled() or self._has_parted or isinstance(done.exception(), ShuttingDown):
            return  # the worker carries its leases to another connection
        elif self.holds(held) and isinstance(done.exception(), _TRY_AGAIN):
            self._spawn(self._renew_again(beat, held, pause))
        else:
            self._settle(beat, held, is_lost=True)

    def _settle(self, beat: _Renewals, *settled: Held, is_lost: bool = False) -> None:
        """These leases of a heartbeat are renewed, or else their worker is told here that they are not."""
        for held in beat.waiting.intersection(settled):
            beat.waiting.discard(held)
            if is_lost:
                self._lose(held)
            if not beat.waiting:
                self._confirm(beat.number)

    def _end_beat(self, beat: _Renewals) -> None:
        """A heartbeat is an interval old: what could not be renewed by now is given up for the sake of all the others.

        A worker takes a confirmed heartbeat for the renewal of every lease that it named. So one that is not renewed
        holds up its confirmation, and of all the next ones, which name it as well, until the worker gives up all that
        it holds, half a lease after the first of them. Before that, it is told that this one is lost, and so that is
        made to be soon: what it reported before would keep the task for nobody. Not so if none was renewed, or while
        the database is away: then others are no worse off, and it may be back in time.
        """
        beat.is_over = True
        if beat.has_answer and self.committer.db.reachable and not self._has_parted:
            lost = tuple(beat.waiting)
            self._settle(beat, *lost, is_lost=True)
            for held in lost:
                log.warning("lease_not_renewed", task_id=held.task_id)
                self._queue(self._shortening(held))

    def _confirm(self, number: int) -> None:
        self.last_beat = max(self.last_beat, number)
        self.send(Beat())

    def _renewal(self, held: Held) -> Renew:
        return Renew(held=held, owner=self.owner, times=self.committer.rules.times)

    def _shortening(self, held: Held) -> Shorten:
        return Shorten(held=held, owner=self.owner, times=self.committer.rules.times)

    def _renewed(self, held: Held, done: asyncio.Future[Answer]) -> bool:
        """Act on the answer to a renewal. False: it did not happen."""
        if done.cancelled() or done.exception() is not None:
            return False
        answer = done.result()
        if answer.verdict is Verdict.STALE and not self.holds(held):
            self._lose(held)
        elif answer.verdict is Verdict.STALE or answer.wake_again:
            self.dispatcher.look([held.task_id])  # which also says why it is lost
        return True

    async def report(self, held: Held, frames: tuple[Frame, ...]) -> None:
        """Commit frames about one task; the answers go out by themselves."""
        self._arrived.pop(held, None)
        if held in self._asked:
            self._asked[held].is_outdated = True
        size = sum(frame.size for frame in frames)
        await self._report(ReportFrames(held, self.owner.session_id, frames, size, self.place.namespace))

    async def _report(self, call: ReportFrames) -> None:
        while sum(one.size for lane in self._lanes.values() for one in lane) > LANES_BYTES:
            # Until a lane is empty the stream is not read: the worker has to wait.
            await asyncio.wait(self._retries, return_when=asyncio.FIRST_COMPLETED)
        if call.held.task_id in self._lanes:  # an earlier one waits for the database: keep the order
            self._queue(call)
            return
        while len(self._strange) >= MOST_STRANGE:
            await asyncio.wait(self._strange, return_when=asyncio.FIRST_COMPLETED)
        answer = await self._enqueue(call, lambda done: self._reported(call, done))
        if not self.holds(call.held):
            self._strange.add(answer)
            answer.add_done_callback(self._strange.discard)

    def _reported(self, call: ReportFrames, done: asyncio.Future[RunNews]) -> None:
        if done.cancelled() or self._has_parted:
            return
        error = done.exception()
        lane = self._lanes.get(call.held.task_id)
        if lane is not None:  # an earlier one failed: this one was refused as out of turn, or must be said again
            _insert_in_order(lane, replace(call, tell_all=True))
        elif error is None:
            self._decided(call, done.result())
        elif isinstance(error, _TRY_AGAIN):
            self._queue(replace(call, tell_all=True))
        else:
            self._decided(call, RunNews(stale=call.held.lost()))

    def _decided(self, call: ReportFrames, news: RunNews) -> None:
        """Tell the worker what came of its frames. If there are none, it has asked for the state, which says it all."""
        if call.frames:
            self.tell(call.held, news)
            return
        self.tell(call.held, RunNews(next_timer=news.next_timer, stale=news.stale))
        if news.stale is None:
            self._spawn(self._send_state(call.held))
        else:
            del self._asked[call.held]

    async def need_state(self, held: Held) -> None:
        """Send the worker all of a run that it holds, with everything in it that it has reported before."""
        asked = self._asked.get(held)
        if not self.holds(held):
            self._lose(held)
        elif asked is None:
            self._asked[held] = _Asked()
            await self._report(ReportFrames(held, self.owner.session_id, namespace=self.place.namespace))
        elif asked.is_outdated:
            asked.is_asked_again = True

    async def _send_state(self, held: Held) -> None:
        try:
            async with self._reading:
                await self.outbox.room()
                self.send(State(await self.read_state(held)))
        except LeaseLost:
            self._lose(held)
        except StepwellError as error:
            self.stop(error)  # it comes back, and asks again
        if self._asked.pop(held).is_asked_again:
            await self.need_state(held)

    def _queue(self, call: ReportFrames | Shorten) -> None:
        """Commit it after all that waits in the lane of its task; in a moment if nothing does."""
        task_id = call.held.task_id
        if task_id not in self._lanes:
            self._lanes[task_id] = deque()
            self._spawn(self._retry(task_id))
        self._lanes[task_id].append(call)

    def _spawn(self, retry: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(retry)
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(self, task_id: int) -> None:
        """Commit what the database could not take, in order, until it can."""
        lane, pause = self._lanes[task_id], SHORTEST_RETRY
        await asyncio.sleep(pause)
        while lane:
            call = lane[0]
            try:
                news = await self.committer.submit(call, self.place.sender)
            except _TRY_AGAIN:
                pause = min(pause * 2, LONGEST_RETRY)
                await asyncio.sleep(pause)
                continue
            except StepwellError:
                news = RunNews(stale=call.held.lost())
            lane.remove(call)
            if isinstance(call, ReportFrames):
                self._decided(call, news)
        del self._lanes[task_id]

    async def _enqueue(self, call: HotCall, then: Callable[[asyncio.Future[Any]], object]) -> asyncio.Future[Any]:
        """Hand a call to the committer. While that is full, the stream is not read: the worker has to wait."""
        while True:
            try:
                answer = self.committer.enqueue(call, self.place.sender)
            except ServerBusy:
                await asyncio.sleep(SHORTEST_RETRY)
                continue
            answer.add_done_callback(then)
            return answer

    # ---- the end

    async def leave(self) -> None:
        """The worker said goodbye: what it holds goes back at once."""
        leaves = [Leave(held=held, owner=self.owner) for held in self.place.held.values()]
        await self._part([*self._arrivals(), *leaves])

    async def lose(self) -> None:
        """The stream broke: what was never sent goes back, all else gets a short grace or is carried elsewhere."""
        unsent = {one.held for one in self.outbox if isinstance(one, Delivery)}
        kept = [] if self.is_draining else [one for one in self.place.held.values() if one not in unsent]
        calls: list[HotCall] = self._arrivals()
        calls += [GiveBack(held=one, owner=self.owner) for one in unsent]
        await self._part(calls + [self._shortening(one) for one in kept])

    def _arrivals(self) -> list[HotCall]:
        """Acknowledgements that are not stored yet: what had arrived may have begun."""
        return [self._renewal(one) for one in self._arrived]

    async def _part(self, calls: Sequence[HotCall]) -> None:
        self._has_parted = True
        self.dispatcher.leave(self.place)
        for retry in self._retries:
            retry.cancel()
        answers = []
        for call in calls:
            try:
                answers.append(self.committer.enqueue(call, self.place.sender))
            except ServerBusy:
                log.warning("lease_left_to_lapse", task_id=call.task_ids[0])
        await asyncio.gather(*answers, return_exceptions=True)


def _insert_in_order(lane: deque[ReportFrames | Shorten], call: ReportFrames) -> None:
    """Calls fail in the order in which they were made, but later ones may stand in the lane already."""
    place = next((n for n, one in enumerate(lane) if _first_number(one) > _first_number(call)), len(lane))
    lane.insert(place, call)


def _first_number(call: ReportFrames | Shorten) -> float:
    """Where a call belongs among those of its task: what ends its lease comes last, and what asks for its state."""
    if isinstance(call, Shorten) or not call.frames:
        return math.inf
    return call.frames[0].number
