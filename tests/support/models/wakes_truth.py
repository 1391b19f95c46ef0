"""Wakes against the truth: operations of every kind, what the database says of them, and somebody who follows."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

from sqlalchemy import select

from stepwell_server.domain.hooks.hooks import HookKey, NewHook
from stepwell_server.domain.spine.frames import Outcome
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.wakes import Wake, WakeFilter
from stepwell_server.domain.values.asked import NOT_ASKED
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import RetryPolicy
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.dispatchers import Dispatchers
from stepwell_server.engine.hooks.hooks import Hooks
from stepwell_server.engine.hooks.targets import changed
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.assignments import Ask, Capacity, Claimed
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.loops.refresh_wakes import refresh_wakes
from stepwell_server.storage import schema
from stepwell_server.storage.database.clock import db_now, lease_now
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.spine import handlers, limits
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import (
    ANNA,
    BEN,
    FINISH,
    ORDER,
    SUSPEND,
    Engine,
    Holding,
    asked,
    background,
    expects,
    sleeps,
)

NOTE, LIMITED = (Handler("default", TaskKind.HOOK, name) for name in ("note", "limited"))
ALL = (ORDER, NOTE, LIMITED)
FILTERS = (
    WakeFilter("default"),
    WakeFilter("default", kinds=frozenset([TaskKind.WORKFLOW])),
    WakeFilter("default", names=frozenset(["limited"])),
)
RETRY = RetryPolicy(max_attempts=3, delay=5 * SECOND)
IDS = "abcde"
SLACK: Micros = 3 * SECOND
"""Leases follow the real clock, which goes on while the database answers. Two kinds of leases differ by more."""


@dataclass(frozen=True)
class Truth:
    """When something can be claimed next, by the rows; what is due is due now, since whenever.

    Leases lapse by the real clock: `lapses_in` counts from when the wake was said that the truth is compared with.
    """

    now: Micros
    due_at: Micros | None
    lapses_in: Micros | None

    def is_met_by(self, wake: Wake) -> bool:
        """Whether somebody who goes by this wake is not late."""
        due = wake.wake_at is not None and (self.due_at is None or wake.wake_at <= max(self.now, self.due_at))
        lapses = wake.wake_at is not None and (
            self.lapses_in is None or wake.wake_at <= self.now + max(0, self.lapses_in) + SLACK
        )
        return (due or self.due_at is None) and (lapses or self.lapses_in is None)

    def is_said_by(self, wake: Wake) -> bool:
        """Whether the wake is neither late nor early."""
        times = [] if self.due_at is None else [max(self.now, self.due_at)]
        times += [] if self.lapses_in is None else [self.now + max(0, self.lapses_in)]
        if wake.wake_at is None or not times:
            return wake.wake_at is None and not times
        return abs(max(self.now, wake.wake_at) - min(times)) <= SLACK and self.is_met_by(wake)


def read_truth(tx: Tx, wanted: WakeFilter) -> Truth:
    """The truth, by a plain walk over all rows."""
    now, lease = tx.execute(select(db_now(), lease_now())).one()
    limits = {handlers.from_row(row): row for row in tx.execute(select(schema.handlers))}
    rows = [(handlers.from_row(row), row) for row in tx.execute(select(schema.tasks))]
    held = Counter(handler for handler, row in rows if row.status == "processing")
    due, lapses = [], []
    for handler, row in rows:
        limit = limits[handler]
        if limit.is_paused or not wanted.matches(handler):
            continue
        if row.status == "processing":
            lapses.append(row.locked_until - lease)
        elif row.status == "pending" and (limit.concurrency is None or held[handler] < limit.concurrency):
            due.append(row.run_at)
    return Truth(now, min(due, default=None), min(lapses, default=None))


@dataclass
class Operations:
    """Everything that can happen to work on one replica, at random. What is refused has not happened."""

    engine: Engine
    chance: random.Random
    holdings: list[Holding] = field(default_factory=list)
    keys: list[HookKey] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.hooks = Hooks(self.engine.replica, self.engine.batches, PageTokens(b"k" * 32))

    def draw(self) -> Callable[[], Awaitable[object]]:
        """One of them, with its particulars decided."""
        one, chance = self.engine, self.chance
        some, hook = chance.choice(IDS), chance.choice([HookKey("default", "none"), *self.keys[-4:]])
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: one.create(some),
            "event": lambda: one.send(to=some),
            "pause": lambda: one.pause(some),
            "resume": lambda: one.resume(some),
            "terminate": lambda: one.terminate(some),
            "restart": lambda: one.restart(some),
            "trigger": lambda: self._trigger(chance.choice([NOTE, LIMITED]), chance.choice([0, 0, 30, 300])),
            "retry": lambda: self.hooks.retry(hook, asked()),
            "cancel": lambda: self.hooks.cancel(hook, asked()),
            "claim": lambda: self._claim(chance.choice([1, 2, 5])),
            "lapse": one.lose_worker,
            "clock": lambda: one.advance(chance.choice([1, 10, 100]) * SECOND),
            "limit": lambda: self._limit(chance.choice([None, 1, 2]), is_paused=chance.random() < 0.2),
            "sweep": one.sweep,
        }
        holders = {
            "suspend": self._suspend,
            "finish": lambda by: one.say(by, FINISH if _is_run(by) else Outcome()),
            "fail": lambda by: one.say(by, FINISH if _is_run(by) else Outcome(Failure("Boom", "no"))),
            "renew": one.renew,
            "shorten": lambda by: one.submit(calls.Shorten(by.held, by.owner, one.times)),
            "give back": lambda by: one.submit(calls.GiveBack(by.held, by.owner)),
            "leave": lambda by: one.submit(calls.Leave(by.held, by.owner)),
        }
        if self.holdings and chance.random() < 0.45:
            name, by = chance.choice(list(holders)), chance.choice(self.holdings[-4:])
            return lambda: self._attempt(name, lambda: holders[name](by))
        name = chance.choice([*verbs, "trigger", "trigger", "claim", "claim", "claim", "create"])
        return lambda: self._attempt(name, verbs[name])

    async def _attempt(self, name: str, operation: Callable[[], Awaitable[object]]) -> None:
        try:
            answer = await operation()
        except StepwellError:
            return
        self.done[name] += answer is not None or name in ("clock", "limit", "lapse")

    async def _trigger(self, handler: Handler, wait: int) -> object:
        at = await self.engine.now() + wait * SECOND if wait else None
        key = HookKey("default", uuid4().hex)
        self.keys.append(key)
        new = NewHook(key, handler.name, Payload("{}"), key.hook_id, at, RETRY)
        (answer,) = await self.hooks.trigger([(new, NOT_ASKED)])
        if isinstance(answer, StepwellError):
            raise answer
        return answer

    async def _claim(self, credits: int) -> object:
        owners = (ANNA, BEN)[: self.chance.choice([1, 2])]
        capacities = [Capacity(owner, frozenset(ALL), credits) for owner in owners]
        ask = Ask(capacities, most=self.chance.choice([None, 1]))
        claimed: Claimed = await self.engine.submit(calls.Claim(ask, by_call=True))
        self.holdings += [Holding(one) for one in claimed.assigned]
        return claimed.assigned or None

    async def _suspend(self, by: Holding) -> object:
        wait = self.chance.choice([sleeps("nap", 20 * SECOND), expects("go", timeout=40 * SECOND)])
        return await self.engine.say(by, wait, SUSPEND)

    async def _limit(self, concurrency: int | None, *, is_paused: bool) -> None:
        mark = self.engine.bus.notes.mark()

        def work(tx: Tx) -> Committed:
            limits.limit(tx, LIMITED, concurrency=concurrency, is_paused=is_paused)
            return changed(tx, LIMITED, mark)

        self.engine.replica.announce(await self.engine.db.run_tx(work))


def _is_run(by: Holding) -> bool:
    return by.task.handler.kind is TaskKind.WORKFLOW


@dataclass
class Followed:
    """A replica whose wakes somebody follows, by several filters."""

    engine: Engine
    dispatchers: Dispatchers
    heard: dict[WakeFilter, list[Wake]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._said_at: dict[tuple[WakeFilter, Micros | None], float] = {}
        current = self.dispatchers._current

        def stamped(wanted: WakeFilter) -> Wake:
            wake = current(wanted)
            self._said_at[wanted, wake.wake_at] = asyncio.get_running_loop().time()
            return wake

        self.dispatchers._current = stamped  # type: ignore[method-assign]

    async def listen(self, wanted: WakeFilter) -> None:
        """Write down all that is said."""
        async with aclosing(self.dispatchers.follow(wanted, keepalive=3600)) as wakes:
            async for wake in wakes:
                self.heard.setdefault(wanted, []).append(wake)

    async def seen(self, wanted: WakeFilter, number: int) -> Wake:
        """What a follower knows once it has seen this number."""
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.heard or self.dispatchers._feeds[wanted].wake.number < number:
                await asyncio.sleep(0.001)
        return self.dispatchers._feeds[wanted].wake

    async def check_not_late(self) -> None:
        """Once somebody has seen the number of all that was acknowledged, what it knows is not later than the truth."""
        number = self.engine.bus.number
        for wanted in FILTERS:
            rows, wake = await self.rows(wanted), await self.seen(wanted, number)
            truth = self.as_of(rows, wanted, wake)
            assert truth.is_met_by(wake), (wanted, truth, wake)

    async def check_exact(self) -> None:
        """Within a moment, everybody knows the truth, neither late nor early."""
        for wanted in FILTERS:
            rows = await self.rows(wanted)
            try:
                async with asyncio.timeout(PATIENCE):
                    while not self.as_of(rows, wanted, wake := self.heard[wanted][-1]).is_said_by(wake):
                        await asyncio.sleep(0.005)
            except TimeoutError:
                raise AssertionError((wanted, self.as_of(rows, wanted, wake), wake)) from None

    async def rows(self, wanted: WakeFilter) -> tuple[Truth, float]:
        """What the rows say, and when."""
        truth = await self.engine.db.run_tx(lambda tx: read_truth(tx, wanted), READ)
        return truth, asyncio.get_running_loop().time()

    def as_of(self, rows: tuple[Truth, float], wanted: WakeFilter, wake: Wake) -> Truth:
        """What the rows said when the wake was said."""
        truth, read_at = rows
        if truth.lapses_in is None:
            return truth
        age = round((read_at - self._said_at[wanted, wake.wake_at]) * SECOND)
        return replace(truth, lapses_in=truth.lapses_in + age)


@asynccontextmanager
async def followed(engine: Engine, loops: Sequence[Awaitable[None]] = ()) -> AsyncIterator[Followed]:
    """A replica with its loops at work, and followers."""
    await engine.db.run_tx(lambda tx: handlers.note(tx, [NOTE, LIMITED]))
    one = Followed(engine, Dispatchers(engine.replica, hands_out=True))
    listening = [one.listen(wanted) for wanted in FILTERS]
    async with background(refresh_wakes(engine.db, engine.bus, engine.tuning.wake_spacing), *loops, *listening):
        for wanted in FILTERS:
            await one.seen(wanted, 0)
        yield one
