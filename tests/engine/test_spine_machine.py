"""The spine against a model: whatever is called in whatever order, the rows are what a few plain rules say they are.

Lease time is in minutes here, and every pass of it is a multiple of ten while every lease ends on an odd five, so that
the time which the test itself takes never decides anything.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import Row, delete, make_url, select

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.frames import Body, Frame, News
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import BEGUN_PRIORITY, NewTask, Task, TaskStatus, Verdict
from stepwell_server.domain.values.times import HOUR, MINUTE
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.storage import schema
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.clock import db_now, lease_now
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.spine import handlers, leases, limits
from tests.support.models.spine_model import ACK_WINDOW, FREE, GRACE, LEASE, LIMIT, LIMITED, Model, Ticket
from tests.support.replicas import tickets
from tests.support.replicas.spine import CHARGING, Spine, frame_answer, held, running

SETTINGS = settings(  # the rest is the profile's: under CI, hypothesis's own is derandomized
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    database=None,
    phases=[Phase.generate] + [Phase.shrink] * ("STEPWELL_MUTANTS" not in os.environ),  # tracing to explain is slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TIMES = LeaseTimes(lease=LEASE * MINUTE, ack_window=ACK_WINDOW * MINUTE, reconnect_grace=GRACE * MINUTE)
HANDLERS = (FREE, LIMITED)
OWNERS = [Owner(session * 32, connection) for session in "ab" for connection in (1, 2)]

owners = st.sampled_from(OWNERS)
priorities = st.sampled_from([0, 5, 9])
likely = st.sampled_from([True, True, False])
back = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 5])  # which lease a call is about, the living first: mostly the same one
jumps = st.sampled_from([1, 1, 1, 0, -1])  # from the last frame to this one: next, repeated, older


# ---- the world: one database and one event loop for all examples of a test


class Seen(NamedTuple):
    """All rows at one moment."""

    now: int
    lease_now: int
    rows: dict[int, Row[Any]]
    counted: dict[int, int]
    """Executions of steps that were counted, by task."""


@dataclass
class World:
    """The spine on a loop of its own, because hypothesis's machines are synchronous."""

    runner: asyncio.Runner
    spine: Spine
    numbers: set[int] = field(default_factory=set)  # all that were ever issued, as fences or to tasks
    met: Counter[str] = field(default_factory=Counter)  # what happened how often

    def submit(self, batch: Sequence[HotCall]) -> list[Any]:
        async def at_once() -> list[Any]:
            return await asyncio.gather(*map(self.spine.submit, batch))

        return self.runner.run(at_once())  # type: ignore[no-any-return]

    def empty(self) -> None:
        """As new, but for the numbers."""

        def work(tx: Tx) -> None:
            for table in (schema.tasks, schema.handlers):
                tx.execute(delete(table))
            handlers.register(tx, HANDLERS)
            limits.limit(tx, LIMITED, concurrency=LIMIT)
            leases.tick(tx, TIMES)

        self.runner.run(self.spine.db.run_tx(work))

    def look(self) -> Seen:
        def work(tx: Tx) -> Seen:
            now, lease = tx.execute(select(db_now(), lease_now())).one()
            counted = Counter(task_id for task_id, *_ in self.spine.kind.charged)
            return Seen(now, lease, {row.id: row for row in tx.execute(select(schema.tasks))}, counted)

        return self.runner.run(self.spine.db.run_tx(work, READ))  # type: ignore[no-any-return]


@contextmanager
def world_on(database_url: str) -> Iterator[World]:
    """Open the database and start the committer; on the way out, stop and close."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()

        async def start() -> Spine:
            db = open_database(make_url(database_url))
            stack.push_async_callback(db.close)
            await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
            return await stack.enter_async_context(running(Spine(db, TIMES)))

        try:
            yield World(runner, runner.run(start()))
        finally:
            runner.run(stack.aclose())


# ---- the machine

ABOUT_LEASES = ("renew", "shorten", "give back")
ABOUT_WORK = ("advance", "release", "finish", "wake")


@dataclass(frozen=True)
class Move:
    """A hot call about a task that was claimed. Not every kind uses every part."""

    kind: str
    ago: int
    by: Owner | None  # None: whoever claimed it
    jump: int
    due: bool
    priority: int


def decide(move: Move, held: Held, claimer: Owner, model: Model, now: int) -> tuple[HotCall, Any]:
    """The call, and the answer that the model gives to it."""
    by, number, priority = move.by or claimer, model.frame_number(held, move.jump), move.priority

    def report(body: Body) -> HotCall:
        return calls.ReportFrames(held, by.session_id, (Frame(number, body),))

    match move.kind:
        case "renew":
            return calls.Renew(held, by, TIMES), model.renew(held, by)
        case "shorten":
            return calls.Shorten(held, by, TIMES), model.shorten(held, by)
        case "give back":
            return calls.GiveBack(held, by), model.give_back(held, by)
        case "advance":
            steps = CHARGING if move.due else ""
            return report(tickets.Advance(steps)), model.advance(held, by, number, steps)
        case "release":
            run_at = now if move.due else now + HOUR
            call = report(tickets.Release(run_at, priority=priority))
            return call, model.release(held, by, number, due=move.due, priority=priority)
        case "finish":
            return report(tickets.Finish()), model.finish(held, by, number)
        case _:
            return tickets.Wake(held.task_id, priority), model.wake(held.task_id, priority)


def answer_of(answer: Any, expected: Any) -> Any:
    """The answer to a call; of a report that to its only frame."""
    return frame_answer(answer, expected.number) if isinstance(answer, News) else answer


def moves(*kinds: str) -> st.SearchStrategy[Move]:
    by = st.sampled_from([None, None, None, *OWNERS])
    return st.builds(Move, st.sampled_from(kinds), back, by=by, jump=jumps, due=st.booleans(), priority=priorities)


somebody_holds = precondition(lambda machine: machine.model.held())


class SpineMachine(stateful.RuleBasedStateMachine):
    """Two sessions with two connections each, three keys, two handlers of which one has a limit."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model()
        self.leases: list[tuple[Held, Owner]] = []
        world.empty()
        self.seen = world.look()

    def lease(self, ago: int) -> tuple[Held, Owner]:
        """One of the leases that were ever given: first those that last, then the youngest."""
        ordered = sorted(self.leases, key=lambda one: self.model.held_under(one[0]) is not None)
        return ordered[max(-1 - ago, -len(ordered))]

    def note_number(self, number: int) -> None:
        assert number not in self.world.numbers
        self.world.numbers.add(number)

    def make(self, *batch: Move) -> None:
        """Let the model decide the moves one after the other, the spine all at once, and compare the answers."""
        leases = [self.lease(move.ago) for move in batch]
        decided = [decide(move, *one, self.model, self.seen.now) for move, one in zip(batch, leases, strict=True)]
        expected = [answer for _, answer in decided]
        answers = [*map(answer_of, self.world.submit([call for call, _ in decided]), expected)]
        assert answers == expected
        self.world.met.update(f"{move.kind} {getattr(one, 'verdict', one)}" for move, one in zip(batch, answers))  # noqa: B905
        if all(not isinstance(one, bool) and one.verdict is not Verdict.ACCEPTED for one in answers):
            assert self.world.look()[2:] == self.seen[2:], "a call that did not count changed something"

    @initialize(owner=owners, keys=st.sampled_from(["xyz", "xy", "x"]), credits=st.integers(1, 2))
    def begin(self, owner: Owner, keys: str, credits: int) -> None:
        """Begin with work in hands: what is interesting happens to that."""
        for handler, key in itertools.product(HANDLERS, keys):
            self.schedule(handler, key, 5, True)
        self.seen = self.world.look()
        self.claim(owner, set(HANDLERS), 2 * credits)

    @rule(handler=st.sampled_from(HANDLERS), key=st.sampled_from("xyz"), priority=priorities, due=st.booleans())
    def schedule(self, handler: Handler, key: str, priority: int, due: bool) -> None:
        run_at = None if due else self.seen.now + HOUR
        (task,) = self.world.submit([tickets.Schedule(NewTask(handler, key, run_at=run_at, priority=priority))])
        assert (task is None) == any((one.handler, one.key) == (handler, key) for one in self.model.tickets.values())
        if task is not None:
            self.note_number(task.id)
            self.model.tickets[task.id] = Ticket(task.id, handler, key, priority, due)

    @rule(owner=owners, hosted=st.sets(st.sampled_from(HANDLERS), min_size=1), credits=st.integers(0, 4))
    def claim(self, owner: Owner, hosted: set[Handler], credits: int) -> None:
        def urgency(one: Ticket) -> tuple[int, int, int]:
            return one.priority, self.seen.rows[one.id].run_at, one.id

        def turn(place: int, one: Ticket) -> tuple[bool, int, int, int]:
            """What has begun, then one of each handler."""
            return one.priority > BEGUN_PRIORITY, place, self.seen.rows[one.id].run_at, one.id

        turns: list[tuple[tuple[bool, int, int, int], Ticket]] = []
        for handler in hosted:
            due, free = self.model.claimable(handler, credits)
            turns += [(turn(place, one), one) for place, one in enumerate(sorted(due, key=urgency)[:free])]
        expected = [one for _, one in sorted(turns, key=lambda turned: turned[0])][:credits]
        claimed = self.world.runner.run(self.world.spine.claim(owner, credits, *hosted))

        assert [task.id for task in claimed] == [one.id for one in expected]
        self.world.met["claimed"] += len(expected)
        for task in claimed:
            self.note_number(task.fence)
            self.model.claim(task.id, task.fence, owner)
            self.leases.append((held(task), owner))

    @somebody_holds
    @rule(move=moves(*ABOUT_LEASES))
    def say_about_lease(self, move: Move) -> None:
        self.make(move)

    @somebody_holds
    @rule(move=moves(*ABOUT_WORK))
    def say_about_work(self, move: Move) -> None:
        self.make(move)

    @rule(batch=st.lists(moves(*ABOUT_LEASES, *ABOUT_WORK), min_size=2, max_size=5))
    def say_much_at_once(self, batch: list[Move]) -> None:
        self.make(*batch)

    @rule(ago=back, priority=priorities, action=st.sampled_from(["pause", "pause", "resume", "seize"]))
    def manage(self, ago: int, priority: int, action: str) -> None:
        task_id = self.lease(ago)[0].task_id
        one = self.model.tickets.get(task_id)
        changes: dict[str, Callable[[Tx], Task | None]] = {
            "pause": lambda tx: tickets.pause(tx, task_id),
            "resume": lambda tx: tickets.resume(tx, task_id, priority),
            "seize": lambda tx: tickets.seize(tx, task_id),
        }
        task = self.world.runner.run(self.world.spine.db.run_tx(changes[action]))
        assert (task is None) == (one is None)
        if one is not None:
            self.world.met[f"{action} {one.status}"] += 1
            if action == "seize":
                self.note_number(task.fence)
            self.model.manage(one, action, priority, task.fence)

    @somebody_holds
    @rule(minutes=st.sampled_from([40, 20, 10]), ticking=st.booleans(), tick=st.booleans(), sweep=likely)
    def time_passes(self, minutes: int, ticking: bool, tick: bool, sweep: bool) -> None:
        self.world.runner.run(self.world.spine.pass_lease_time(minutes * 60, ticking=ticking))
        self.model.now += minutes
        if ticking:
            self.model.last_tick += minutes
        if tick:
            assert self.world.runner.run(self.world.spine.tick()) == self.model.tick()
        if sweep:
            swept = sorted(task.id for task in self.world.runner.run(self.world.spine.sweep()))
            assert swept == self.model.sweep()
            self.world.met[f"sweep of {'some' if swept else 'nothing'}"] += 1

    @invariant()
    def rows_are_the_models(self) -> None:
        self.seen = self.world.look()
        there = {task_id: stored(row, self.seen) for task_id, row in self.seen.rows.items()}
        assert there == {task_id: modelled(one, self.model.now) for task_id, one in self.model.tickets.items()}

        counted = {task_id: one.charged for task_id, one in self.model.tickets.items() if one.charged}
        assert {one: count for one, count in self.seen.counted.items() if one in self.seen.rows} == counted

    @invariant()
    def rows_make_sense(self) -> None:
        rows = list(self.seen.rows.values())
        for row in rows:
            held = row.status == TaskStatus.PROCESSING
            assert [row.session_id is None, row.connection is None, row.locked_until is None] == [not held] * 3
        assert len({(row.name, row.key) for row in rows}) == len(rows)
        assert len([row for row in rows if row.name == "limited" and row.session_id]) <= LIMIT


def stored(row: Row[Any], seen: Seen) -> dict[str, Any]:
    """What the model knows of a row."""
    same = ("id", "key", "priority", "status", "fence", "revision", "stop", "reason", "interruptions", "open_steps")
    return {name: getattr(row, name) for name in same} | {
        "name": row.name,
        "frame": row.frame_number,
        "wake_again": bool(row.wake_again),
        "acked": bool(row.acked),
        "owner": None if row.session_id is None else Owner(row.session_id, row.connection),
        "due": row.run_at <= seen.now,
        # Rounded to the model's grid of five minutes: what the test itself took is not counted.
        "lasts": None if row.locked_until is None else round((row.locked_until - seen.lease_now) / (5 * MINUTE)) * 5,
    }


def modelled(one: Ticket, now: int) -> dict[str, Any]:
    """A ticket as `stored` shows its row."""
    known = {name: value for name, value in vars(one).items() if name not in ("handler", "until", "charged")}
    return known | {"name": one.handler.name, "lasts": None if one.until is None else one.until - now}


@pytest.mark.timeout(180)
def test_the_spine_does_what_the_model_says(database_url: str) -> None:
    with world_on(database_url) as world:
        stateful.run_state_machine_as_test(lambda: SpineMachine(world), settings=SETTINGS)

    # A machine in which nothing happens proves nothing.
    accepted = sum(count for what, count in world.met.items() if what.endswith("accepted"))
    assert min(accepted, world.met["claimed"]) > 30 and world.met["sweep of some"] > 0
