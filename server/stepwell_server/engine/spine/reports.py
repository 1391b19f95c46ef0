"""Reports: frames of a worker's stream, committed in the order in which they came for each task, whatever happens."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from stepwell_server.domain.spine.frames import Frame, News
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.values.errors import LeaseLost, StepwellError
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.calls import ReportFrames, Shorten
from stepwell_server.engine.spine.links import LONGEST_RETRY, TRY_AGAIN, Link
from stepwell_server.engine.spine.outbox import State


@dataclass(slots=True, eq=False)
class _Asked:
    """A state that is on its way to its worker."""

    is_outdated: bool = False
    """The worker has reported something since it asked."""
    is_asked_again: bool = False
    """And then it has asked again."""


class Reports:
    """The reports of one connection."""

    def __init__(self, link: Link, read_state: Callable[[Held], Awaitable[Assignment]]) -> None:
        self._link = link
        self._read_state = read_state
        self._lanes: dict[int, deque[ReportFrames | Shorten]] = {}
        """By task: what the database could not take, in the order in which it shall."""
        self._strange: set[asyncio.Future[News]] = set()
        """Answers to reports about what it does not hold: perhaps it did, and repeats how that ended."""
        self._asked: dict[Held, _Asked] = {}
        """Tasks whose state is on its way."""
        self._reading = asyncio.Lock()
        """One state is read at a time, when there is room for it."""

    async def report(self, held: Held, frames: tuple[Frame, ...]) -> None:
        """Commit frames about one task; the answers go out by themselves."""
        if held in self._asked:
            self._asked[held].is_outdated = True
        size = sum(frame.size for frame in frames)
        await self._report(
            ReportFrames(held, self._link.owner.session_id, frames, size, namespace=self._link.worker.namespace)
        )

    async def _report(self, call: ReportFrames) -> None:
        tuning = self._link.committer.tuning
        while sum(one.size for lane in self._lanes.values() for one in lane) > tuning.waiting_bytes:
            # Until a lane is empty the stream is not read: the worker has to wait.
            await asyncio.wait(self._link.retries, return_when=asyncio.FIRST_COMPLETED)
        if call.held.task_id in self._lanes:  # an earlier one waits for the database: keep the order
            self._queue(call)
            return
        while len(self._strange) >= tuning.strange_reports:
            await asyncio.wait(self._strange, return_when=asyncio.FIRST_COMPLETED)
        answer = await self._link.enqueue(call, lambda done: self._reported(call, done))
        if not self._link.holds(call.held):
            self._strange.add(answer)
            answer.add_done_callback(self._strange.discard)

    def _reported(self, call: ReportFrames, done: asyncio.Future[News]) -> None:
        if done.cancelled() or self._link.has_parted:
            return
        error = done.exception()
        lane = self._lanes.get(call.held.task_id)
        if lane is not None:  # an earlier one failed: this one was refused as out of turn, or must be said again
            _insert_in_order(lane, replace(call, tell_all=True))
        elif error is None:
            self._decided(call, done.result())
        elif isinstance(error, TRY_AGAIN):
            self._queue(replace(call, tell_all=True))
        else:
            self._decided(call, News(stale=call.held.lost()))

    def _decided(self, call: ReportFrames, news: News) -> None:
        """Tell the worker what came of its frames. If there are none, it has asked for the state, which says it all."""
        if call.frames:
            self._link.tell(call.held, news)
            return
        self._link.tell(call.held, News(next_timer=news.next_timer, stale=news.stale))
        if news.stale is None:
            self._link.spawn(self._send_state(call.held))
        else:
            del self._asked[call.held]

    async def need_state(self, held: Held) -> None:
        """Send the worker all of a run that it holds, with everything in it that it has reported before."""
        asked = self._asked.get(held)
        if not self._link.holds(held):
            self._link.lose(held)
        elif asked is None:
            self._asked[held] = _Asked()
            await self._report(ReportFrames(held, self._link.owner.session_id, namespace=self._link.worker.namespace))
        elif asked.is_outdated:
            asked.is_asked_again = True

    async def _send_state(self, held: Held) -> None:
        try:
            async with self._reading:
                await self._link.outbox.room()
                self._link.send(State(await self._read_state(held)))
        except LeaseLost:
            self._link.lose(held)
        except StepwellError as error:
            self._link.stop(error)  # it comes back, and asks again
        if self._asked.pop(held).is_asked_again:
            await self.need_state(held)

    def shorten(self, held: Held) -> None:
        """End a lease soon, after all that was reported under it."""
        self._queue(self._link.shortening(held))

    def _queue(self, call: ReportFrames | Shorten) -> None:
        """Commit it after all that waits in the lane of its task; in a moment if nothing does."""
        task_id = call.held.task_id
        if task_id not in self._lanes:
            self._lanes[task_id] = deque()
            self._link.spawn(self._retry(task_id))
        self._lanes[task_id].append(call)

    async def _retry(self, task_id: int) -> None:
        """Commit what the database could not take, in order, until it can."""
        lane, pause = self._lanes[task_id], self._link.committer.tuning.report_retry
        await asyncio.sleep(pause)
        while lane:
            call = lane[0]
            try:
                news = await self._link.committer.submit(call, self._link.worker.sender)
            except TRY_AGAIN:
                pause = min(pause * 2, LONGEST_RETRY)
                await asyncio.sleep(pause)
                continue
            except StepwellError:
                news = News(stale=call.held.lost())
            lane.remove(call)
            if isinstance(call, ReportFrames):
                self._decided(call, news)
        del self._lanes[task_id]


def _insert_in_order(lane: deque[ReportFrames | Shorten], call: ReportFrames) -> None:
    """Calls fail in the order in which they were made, but later ones may stand in the lane already."""
    place = next((n for n, one in enumerate(lane) if _first_number(one) > _first_number(call)), len(lane))
    lane.insert(place, call)


def _first_number(call: ReportFrames | Shorten) -> float:
    """Where a call belongs among those of its task: what ends its lease comes last, and what asks for its state."""
    if isinstance(call, Shorten) or not call.frames:
        return math.inf
    return call.frames[0].number
