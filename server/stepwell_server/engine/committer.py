"""The committer: collects hot calls while a transaction is in flight and commits them as the next one.

Alone, a call is committed at once; under load, groups grow by themselves. Nobody is acknowledged before the commit that
made it true. A call whose task another transaction has locked is tried again, a few times with the next groups and then
alone on the slow lane; calls about the same entity wait behind it. A call that the database cannot take fails alone:
the group is halved until it stands by itself. One that still loses against others then takes the slow lane, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from stepwell_server.domain.errors import (
    Conflict,
    DatabaseSlow,
    DatabaseUnavailable,
    Internal,
    ServerBusy,
    ShuttingDown,
    StepwellError,
)
from stepwell_server.domain.runs import RunRules
from stepwell_server.engine.groups import Committed, GroupResult, HotCall, Undecided, run_group
from stepwell_server.storage.database import Database, TxOptions

GROUP_CALLS = 500
GROUP_BYTES = 4 * 1024 * 1024
INBOX_CALLS = 10_000
INBOX_BYTES = 64 * 1024 * 1024
PATIENCE = 3
"""Groups that a call waits out before it takes the slow lane."""
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.02

_DIVIDED = (Conflict, DatabaseSlow)
"""What a group meets that its halves may not."""
_HOT = TxOptions(label="group", attempts=2, reserved=True)
_SLOW = TxOptions(label="slow-lane", attempts=2, reserved=True)

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call on its way, and whoever waits for its answer."""

    call: HotCall
    answer: asyncio.Future[Any]
    passed_over: int = 0


@dataclass(slots=True)
class Committer:
    """One per replica. `on_commit` hears of every group that was committed."""

    db: Database
    rules: RunRules
    on_commit: Callable[[Committed], None]
    mark: Callable[[], int] = int
    """What the wake bus has noted, to be asked before a transaction begins."""
    _inbox: deque[_Waiting] = field(default_factory=deque)
    _bytes: int = 0
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _slow: dict[Hashable, asyncio.Task[None]] = field(default_factory=dict)
    """Calls on the slow lane, by their entity."""
    _lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One of them at a time: however many rows are locked, waiting for them takes one connection."""

    async def submit(self, call: HotCall) -> Any:
        """Commit the call with others and return its answer, or raise its refusal."""
        return await self.enqueue(call)

    def enqueue(self, call: HotCall) -> asyncio.Future[Any]:
        """Take the call in, after all that came before it. The future brings its answer or its refusal."""
        if len(self._inbox) >= INBOX_CALLS or self._bytes + call.size > INBOX_BYTES:
            raise ServerBusy("more is waiting to be committed than the server takes", retry_after=0.1)
        waiting = _Waiting(call, asyncio.get_running_loop().create_future())
        self._inbox.append(waiting)
        self._bytes += call.size
        self._arrived.set()
        return waiting.answer

    async def run(self) -> None:
        """Commit group after group, until cancelled."""
        pause = SHORTEST_PAUSE
        try:
            while True:
                await self._arrived.wait()
                group = self._next_group()
                if not group:
                    self._arrived.clear()
                    continue
                undecided = await self._commit(group)
                self._try_again(undecided)
                progressed = len(undecided) < len(group)
                pause = SHORTEST_PAUSE if progressed else min(pause * 2, LONGEST_PAUSE)
                if not progressed:
                    await asyncio.sleep(pause)
        finally:
            for lane in self._slow.values():
                lane.cancel()
            self._fail(list(self._inbox), ShuttingDown("the server is going away; repeat the call", retry_after=1.0))
            self._inbox.clear()
            self._bytes = 0

    def _next_group(self) -> list[_Waiting]:
        """The oldest calls, up to the limits of a group; those about an entity on the slow lane stay behind."""
        group: list[_Waiting] = []
        behind: deque[_Waiting] = deque()
        size = 0
        while self._inbox and len(group) < GROUP_CALLS and (not group or size < GROUP_BYTES):
            waiting = self._inbox.popleft()
            if waiting.call.entity in self._slow:
                behind.append(waiting)
                continue
            group.append(waiting)
            size += waiting.call.size
        self._bytes -= size
        self._inbox.extendleft(reversed(behind))
        return group

    async def _commit(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        """Commit the group, or its halves if it fails. Returns what stays undecided, in order."""
        try:
            result = await self._run([waiting.call for waiting in group], _HOT)
        except Exception as error:
            if len(group) > 1 and (isinstance(error, _DIVIDED) or not isinstance(error, StepwellError)):
                return await self._commit_halves(group)
            if isinstance(error, Conflict):
                group[0].passed_over = PATIENCE
                return list(group)
            self._fail(group, error)
            return []
        return self._answer(group, result)

    async def _run(self, calls: Sequence[HotCall], options: TxOptions) -> GroupResult:
        mark, waiting = self.mark(), options is _SLOW
        result = await self.db.run_tx(lambda tx: run_group(tx, calls, self.rules, waiting=waiting), options)
        return replace(result, committed=replace(result.committed, mark=mark))

    async def _commit_halves(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        """Commit one half, then the other without calls that must wait behind an undecided one of the first."""
        middle = len(group) // 2
        undecided = await self._commit(group[:middle])
        stuck = {waiting.call.entity for waiting in undecided}
        undecided += [waiting for waiting in group[middle:] if waiting.call.entity in stuck]
        rest = [waiting for waiting in group[middle:] if waiting.call.entity not in stuck]
        return undecided + (await self._commit(rest) if rest else [])

    def _answer(self, group: Sequence[_Waiting], result: GroupResult) -> list[_Waiting]:
        undecided: list[_Waiting] = []
        for waiting, answer in zip(group, result.answers, strict=True):
            if isinstance(answer, Undecided):
                waiting.passed_over += 1
                undecided.append(waiting)
            else:
                _settle(waiting, answer)
        if len(undecided) < len(group):
            self.on_commit(result.committed)
        return undecided

    def _try_again(self, undecided: Sequence[_Waiting]) -> None:
        """Back to the front, in order; what was passed over too often goes to the slow lane, ahead of its entity."""
        back: list[_Waiting] = []
        for waiting in undecided:
            entity = waiting.call.entity
            if waiting.passed_over >= PATIENCE and entity not in self._slow:
                self._slow[entity] = asyncio.create_task(self._decide_slowly(waiting))
            else:
                back.append(waiting)
        self._inbox.extendleft(reversed(back))
        self._bytes += sum(waiting.call.size for waiting in back)
        if back:
            self._arrived.set()

    async def _decide_slowly(self, waiting: _Waiting) -> None:
        """Decide one call in a transaction of its own that may wait for the lock."""
        try:
            async with self._lane:
                result = await self._run([waiting.call], _SLOW)
            _settle(waiting, result.answers[0])
            self.on_commit(result.committed)
        except Conflict:
            locked = DatabaseUnavailable("its row is locked by another for too long; repeat the call", retry_after=1.0)
            self._fail([waiting], locked)
        except Exception as error:
            self._fail([waiting], error)
        finally:
            del self._slow[waiting.call.entity]
            self._arrived.set()

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        refusal = error
        if not isinstance(error, StepwellError):
            log.error("hot_call_failed", calls=len(group), exc_info=error)
            refusal = Internal("internal error; the server's log has it")
        for waiting in group:
            _settle(waiting, _own(refusal))


def _own(refusal: Exception) -> Exception:
    """The refusal, for one caller alone: an exception that many raise gathers all their tracebacks."""
    own = copy(refusal)
    own.__cause__ = refusal.__cause__
    return own


def _settle(waiting: _Waiting, answer: Any) -> None:
    if waiting.answer.done():
        return  # its caller has gone; what was committed stays committed
    if isinstance(answer, Exception):
        waiting.answer.set_exception(answer)
        waiting.answer.exception()  # whoever cares hears of it; that nobody is left to do so is no error of ours
    else:
        waiting.answer.set_result(answer)
