"""The committer: collects hot calls while a transaction is in flight and commits them as the next one.

Alone, a call is committed at once; under load, groups grow by themselves. Nobody is acknowledged before the commit that
made it true. A call whose task another transaction has locked is tried again, a few times with the next groups and then
alone on the slow lane; calls about the same entity wait behind it. A call that the database cannot take fails alone:
the group is halved until it stands by itself. One that still loses against others then takes the slow lane, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import (
    Conflict,
    DatabaseSlow,
    DatabaseUnavailable,
    Internal,
    ShuttingDown,
    StepwellError,
)
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.books import HotCall, Undecided
from stepwell_server.engine.spine.express import Decided, Express, Part
from stepwell_server.engine.spine.group import GroupResult, run_group
from stepwell_server.engine.spine.ids import new_id
from stepwell_server.engine.spine.inbox import SERVER, Inbox, Sender, Waiting
from stepwell_server.engine.spine.kinds import Committed, Kinds
from stepwell_server.engine.spine.sharing import Sharing
from stepwell_server.engine.spine.timings import Stage, Timings, Way
from stepwell_server.storage.database.database import Database, LostRace, TxOptions

SHARE = 10
"""Items of each namespace in a group while several send: whoever comes then waits for a small one."""
SHARE_BYTES = 8 * 1024
"""Of a call, for which it counts as one more."""
PATIENCE = 3
"""Groups that a call waits out before it takes the slow lane."""
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.02

_DIVIDED = (Conflict, DatabaseSlow)
"""What a group meets that its halves may not."""
_HOT = TxOptions(label="group", attempts=2, reserved=True)
_EXPRESS = TxOptions(label="express", attempts=1, reserved=True, single=True)
_SLOW = TxOptions(label="slow-lane", attempts=2, reserved=True)

log = structlog.get_logger()


@dataclass(slots=True)
class Committer:
    """One per replica. `on_commit` hears of every group that was committed."""

    db: Database
    kinds: Kinds
    rules: Rules
    on_commit: Callable[[Committed], None]
    mark: Callable[[], int] = int
    """What the wake bus has noted, to be asked before a transaction begins."""
    timings: Timings = field(default_factory=Timings)
    tuning: Tuning = DEFAULT
    express: Express | None = None
    """None: every call is decided under its lock."""
    _inbox: Inbox = field(init=False)
    _sharing: Sharing = field(init=False)
    """Whether several namespaces send: then groups are small, whoever waits."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _slow: dict[Hashable, asyncio.Task[None]] = field(default_factory=dict)
    """Calls on the slow lane, by their entity."""
    _lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One of them at a time: however many rows are locked, waiting for them takes one connection."""

    def __post_init__(self) -> None:
        self._inbox = Inbox(tuning=self.tuning)
        self._sharing = Sharing(self.tuning.shared_for)

    async def submit(self, call: HotCall, sender: Sender = SERVER) -> Any:
        """Commit the call with others and return its answer, or raise its refusal."""
        return await self.enqueue(call, sender)

    def enqueue(self, call: HotCall, sender: Sender = SERVER) -> asyncio.Future[Any]:
        """Take the call in, after all that its sender sent before. The future brings its answer or its refusal."""
        waiting = Waiting(call, sender, asyncio.get_running_loop().create_future())
        self._inbox.put(waiting)
        if sender.namespace != SERVER.namespace:
            self._sharing.note(sender.namespace)
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
                undecided = await self._commit(await self._commit_express(group))
                self._try_again(undecided)
                progressed = len(undecided) < len(group)
                pause = SHORTEST_PAUSE if progressed else min(pause * 2, LONGEST_PAUSE)
                if not progressed:
                    await asyncio.sleep(pause)
        finally:
            for lane in self._slow.values():
                lane.cancel()
            going = ShuttingDown("the server is going away; repeat the call", retry_after=1.0)
            self._fail(self._inbox.empty(), going)

    def _next_group(self) -> list[Waiting]:
        """The next calls, up to the limits of a group; those about an entity on the slow lane stay behind."""
        group: list[Waiting] = []
        behind: list[Waiting] = []
        inbox, tuning, taken, spent = self._inbox, self.tuning, Counter[str](), set[str]()
        size, room = 0, tuning.group_items
        share = SHARE if self._sharing.is_shared else tuning.group_items
        while inbox.turn_to_others(spent) and len(group) < tuning.group_calls and size < tuning.group_bytes:
            if group and inbox.next.call.weight > room:
                break
            waiting = inbox.take()
            if waiting.call.entity in self._slow:
                behind.append(waiting)
                continue
            group.append(waiting)
            size += waiting.size
            room -= waiting.call.weight
            taken[waiting.sender.namespace] += waiting.call.weight + waiting.size // SHARE_BYTES
            if taken[waiting.sender.namespace] >= share:
                spent.add(waiting.sender.namespace)
        inbox.put_back(behind)
        return group

    async def _commit_express(self, group: list[Waiting]) -> list[Waiting]:
        """Commit what can be decided by images. Returns the rest, in order."""
        if self.express is None:
            return group
        parts, rest = self.express.split(group)
        if not parts:
            return group
        missed = [one for part in await asyncio.gather(*map(self._commit_part, parts)) for one in part]
        self.timings.missed += len(missed)
        left = {id(one) for one in [*rest, *missed]}
        return [one for one in group if id(one) in left]

    async def _commit_part(self, part: Part) -> list[Waiting]:
        """Commit calls that are decided by images, or halves of them. Returns what was not written."""
        assert self.express is not None
        mark, began = self.mark(), asyncio.get_running_loop().time()
        decided = self.express.decide(part)
        if not decided.waiting:
            return decided.refused
        try:
            written = await self.db.run_tx(decided.write(), _EXPRESS)
        except DatabaseUnavailable as error:  # it may have happened
            self._fail(decided.waiting, error)
            return decided.refused
        except Exception as error:
            log.warning("express_failed", calls=len(decided.waiting), error=repr(error))
            return decided.refused + await self._commit_parts(decided)
        done, missed, result = decided.settle(written)
        for waiting in missed:
            self.express.forget(decided, waiting)
        committed = replace(result.committed, mark=mark, began=began)
        self._answer(done, replace(result, committed=committed), Way.EXPRESS)
        return decided.refused + missed

    async def _commit_parts(self, failed: Decided) -> list[Waiting]:
        """Commit halves of what the database refused, down to the one call that it refuses: that is not express."""
        assert self.express is not None
        if len(failed.waiting) == 1:
            self.express.forget(failed, failed.waiting[0])
            return failed.waiting
        first, second = Part(failed.kind, failed.waiting).halves()
        return await self._commit_part(first) + await self._commit_part(second)

    async def _commit(self, group: Sequence[Waiting]) -> list[Waiting]:
        """Commit the group, or its halves if it fails. Returns what stays undecided, in order."""
        if not group:
            return []
        try:
            result = await self._run([waiting.call for waiting in group], _HOT)
        except Exception as error:
            lost = _lost(error)
            if lost:
                return await self._commit_without(group, lost)
            if len(group) > 1 and (isinstance(error, _DIVIDED) or not isinstance(error, StepwellError)):
                return await self._commit_halves(group)
            if isinstance(error, Conflict):
                group[0].passed_over = PATIENCE
                return list(group)
            self._fail(group, error)
            return []
        return self._answer(group, result)

    async def _run(self, calls: Sequence[HotCall], options: TxOptions) -> GroupResult:
        mark, waiting, began = self.mark(), options is _SLOW, asyncio.get_running_loop().time()
        result = await self.db.run_tx(lambda tx: run_group(tx, calls, self.kinds, self.rules, waiting=waiting), options)
        result.measured.end(Stage.COMMIT)
        return replace(result, committed=replace(result.committed, mark=mark, began=began))

    async def _commit_halves(self, group: Sequence[Waiting]) -> list[Waiting]:
        """Commit one half, then the other without calls that must wait behind an undecided one of the first."""
        middle = len(group) // 2
        undecided = await self._commit(group[:middle])
        return undecided + await self._commit_others(group[middle:], undecided)

    async def _commit_without(self, group: Sequence[Waiting], lost: Collection[Hashable]) -> list[Waiting]:
        """Commit a group without the calls whose requests another replica is answering again and again."""
        losers = [waiting for waiting in group if waiting.call.request in lost]
        for waiting in losers:
            waiting.passed_over += 1
        return await self._commit_others(group, losers)

    async def _commit_others(self, group: Sequence[Waiting], undecided: Sequence[Waiting]) -> list[Waiting]:
        """Commit the calls about other entities than these. Returns what stays undecided, in order."""
        stuck = {waiting.call.entity for waiting in undecided}
        behind = [waiting for waiting in group if waiting.call.entity in stuck]
        rest = [waiting for waiting in group if waiting.call.entity not in stuck]
        return behind + (await self._commit(rest) if rest else [])

    def _answer(self, group: Sequence[Waiting], result: GroupResult, way: Way = Way.HOT) -> list[Waiting]:
        undecided: list[Waiting] = []
        for waiting, answer in zip(group, result.answers, strict=True):
            if isinstance(answer, Undecided):
                waiting.passed_over += 1
                undecided.append(waiting)
            else:
                waiting.settle(answer)
        if len(undecided) < len(group):
            self.on_commit(result.committed)
        self.timings.note_group(way, result.measured, [one.arrived for one in group], len(undecided))
        return undecided

    def _try_again(self, undecided: Sequence[Waiting]) -> None:
        """Back to the front, in order; what was passed over too often goes to the slow lane, ahead of its entity."""
        back: list[Waiting] = []
        for waiting in undecided:
            entity = waiting.call.entity
            if waiting.passed_over >= PATIENCE and entity not in self._slow:
                self._slow[entity] = asyncio.create_task(self._decide_slowly(waiting))
            else:
                back.append(waiting)
        self._inbox.put_back(back)
        if back:
            self._arrived.set()

    async def _decide_slowly(self, waiting: Waiting) -> None:
        """Decide one call in a transaction of its own that may wait for the lock."""
        try:
            async with self._lane:
                result = await self._run([waiting.call], _SLOW)
            waiting.settle(result.answers[0])
            self.on_commit(result.committed)
            self.timings.note_group(Way.SLOW, result.measured, [waiting.arrived])
        except Conflict:
            locked = DatabaseUnavailable("its row is locked by another for too long; repeat the call", retry_after=1.0)
            self._fail([waiting], locked)
        except Exception as error:
            self._fail([waiting], error)
        finally:
            del self._slow[waiting.call.entity]
            self._arrived.set()

    def _fail(self, group: Sequence[Waiting], error: Exception) -> None:
        refusal = error
        if not isinstance(error, StepwellError):
            log_id = new_id()
            log.error("hot_call_failed", log_id=log_id, calls=len(group), exc_info=error)
            refusal = Internal(f"internal error; the server's log has it as {log_id}", log_id=log_id)
        for waiting in group:
            waiting.settle(_own(refusal))


def _lost(error: Exception) -> Collection[Hashable]:
    """The parts of a group that lost a race twice, as far as the error names them."""
    return error.__cause__.lost if isinstance(error.__cause__, LostRace) else ()


def _own(refusal: Exception) -> Exception:
    """The refusal, for one caller alone: an exception that many raise gathers all their tracebacks."""
    own = copy(refusal)
    own.__cause__ = refusal.__cause__
    return own
