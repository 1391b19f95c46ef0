"""Runs against a model: whatever is called in whatever order, what is stored is what a few plain rules say it is.

Users' time is virtual and stands still unless a rule moves it, so the model knows every instant. Leases are long, so
that they lapse only when a rule says that a worker is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import Row, delete, select, update

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.leases import LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Task, TaskStatus
from stepwell_server.domain.values.errors import (
    InstanceIdAlreadyExists,
    InstanceTerminal,
    StepNotFound,
    StepwellError,
)
from stepwell_server.domain.values.times import MINUTE, SECOND, Micros
from stepwell_server.domain.workflows.instances import InstanceStatus, StepStatus, StepType, status_of
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.spine.timings import Way
from stepwell_server.storage import schema
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.payloads import from_text
from stepwell_server.storage.spine import tasks as store
from tests.support.models.workflow_model import MOST, Model, Run
from tests.support.models.workflow_moves import EXPECT, SLEEP, THEN_SUSPEND, Move, moves, reports, said, sloppy, told
from tests.support.replicas.runs import (
    ANNA,
    BEN,
    Engine,
    Holding,
    replicas_on,
)

T = TypeVar("T")

SETTINGS = settings(  # the rest is the profile's: under CI, hypothesis's own is derandomized
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    database=None,
    phases=[Phase.generate] + [Phase.shrink] * ("STEPWELL_MUTANTS" not in os.environ),  # tracing to explain is slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SELDOM = ("crash", "restart", "frame repeated", "event while waiting", "report stale")
"""What must have happened: chance may miss one of them in a round."""
MOST_ROUNDS = 5
LONG = LeaseTimes(lease=10_000 * MINUTE, ack_window=10_000 * MINUTE)

ACTIONS = ("pause", "pause", "resume", "resume", "terminate", "restart", "create")

names = st.sampled_from("xy")
likely = st.sampled_from([True, True, False])
unlikely = st.sampled_from([False, False, False, True])
owners = st.sampled_from([ANNA, BEN])
back = st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2])  # which lease a call is about, the living first


# ---- the world: one database and one event loop for all examples of a test


@dataclass(frozen=True)
class Seen:
    """All rows at one moment."""

    now: Micros
    instances: dict[str, Row[Any]]
    tasks: dict[str, Task]
    steps: dict[tuple[int, int, str], Row[Any]]
    events: dict[tuple[int, int, int], Row[Any]]


@dataclass
class World:
    """A replica on a loop of its own, because hypothesis's machines are synchronous."""

    runner: asyncio.Runner
    engine: Engine
    met: Counter[str] = field(default_factory=Counter)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def empty(self) -> None:
        """As new, but for the clock and the fences."""
        gone = (schema.tasks, schema.workflow_instances, schema.workflow_steps, schema.workflow_events)

        def work(tx: Tx) -> None:
            for table in gone:
                tx.execute(delete(table))

        self.run(self.engine.db.run_tx(work))

    def look(self) -> Seen:
        steps, events = schema.workflow_steps, schema.workflow_events

        def work(tx: Tx) -> Seen:
            return Seen(
                tx.execute(select(db_now())).scalar_one(),
                {row.instance_id: row for row in tx.execute(select(schema.workflow_instances))},
                {row.key: store.from_row(row) for row in tx.execute(select(schema.tasks))},
                {(row.task_id, row.run_number, row.name): row for row in tx.execute(select(steps))},
                {(row.task_id, row.run_number, row.position): row for row in tx.execute(select(events))},
            )

        return self.run(self.engine.db.run_tx(work, READ))


@contextmanager
def world_on(database_url: str, *, express: bool) -> Iterator[World]:
    """Open the database and start the committer; on the way out, stop and close."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()

        async def start() -> Engine:
            (engine,) = await stack.enter_async_context(replicas_on(database_url, times=LONG, express=express))
            return engine

        try:
            world = World(runner, runner.run(start()))
            if world.engine.committer.express is not None:
                world.engine.committer.express.images = Spoiled()
            yield world
        finally:
            runner.run(stack.aclose())


class Spoiled(dict[int, Task]):
    """Images of which every third is wrong, as if something had happened to its run."""

    def update(self, known: Any = (), /, **_: Any) -> None:
        """Keep them, some as they were before the last report."""
        for task_id, image in dict(known).items():
            self[task_id] = image._replace(revision=image.revision - (image.fence + image.revision) % 3 // 2)


# ---- the machine

anybody_holds = precondition(lambda machine: machine.leases)


class WorkflowMachine(stateful.RuleBasedStateMachine):
    """Two instances, two workers, two bodies, a sleep and three event waits of which two want the same."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.engine = world.engine
        self.leases: list[tuple[Holding, str]] = []
        self.last: dict[int, ReportFrames] = {}
        self.final: dict[tuple[int, int, str], Row[Any]] = {}
        self.earlier: dict[tuple[Any, ...], Row[Any]] = {}
        world.empty()
        self.seen = world.look()
        self.model = Model(self.seen.now)

    def lease(self, ago: int, *, that_spoke: bool = False) -> tuple[Holding, str]:
        """One of the leases that were ever given: first those that last, then the youngest."""

        def lasts(one: tuple[Holding, str]) -> bool:
            run = self.model.runs[one[1]]
            return run.held and run.fence == one[0].held.fence

        known = [one for one in self.leases if not that_spoke or one[0].held.fence in self.last]
        ordered = sorted(known, key=lasts)
        return ordered[max(-1 - ago, -len(ordered))]

    def attempt(self, call: Coroutine[Any, Any, Any], refusal: type[StepwellError] | None) -> Any:
        """Make a call that must be refused so, or not at all."""
        try:
            result = self.world.run(call)
        except StepwellError as error:
            assert refusal is not None and isinstance(error, refusal), repr(error)
            return None
        assert refusal is None, f"this was to be refused with {refusal}"
        return result

    def report(self, holding: Holding, name: str, call: ReportFrames, what: str) -> None:
        run = self.model.runs[name]
        expected = run.report(holding.held.fence, call.frames, self.model.now)
        news = self.world.run(self.engine.submit(call))
        assert told(news) == expected
        self.world.met[f"{what} {'stale' if expected.stale else 'counted'}"] += 1
        self.world.met.update(f"frame {one[0]}{' refused' * one[1]}" for one in expected.frames)

    @initialize(owner=owners)
    def begin(self, owner: Owner) -> None:
        """Begin with work in hands: what is interesting happens to that."""
        for name in "xy":
            self.create(name)
        self.seen = self.world.look()
        self.claim(owner, 2, True)

    # ---- clients

    def create(self, name: str) -> None:
        there = name in self.model.runs
        created = self.attempt(self.engine.create(name), InstanceIdAlreadyExists if there else None)
        if not there:
            self.model.runs[name] = Run(name, created.id, self.model.now)

    @rule(name=names, event_type=st.sampled_from(["go", "other"]), wanted=likely, count=st.sampled_from([1, 1, 2, 3]))
    def send(self, name: str, event_type: str, wanted: bool, count: int) -> None:
        """Send events: likely to whoever waits for one."""
        waits = [(run, step) for run in self.model.runs.values() for step in run.waits() if step.event_type]
        run = self.model.runs[name]
        if wanted and waits and not run.ended:
            run, step = waits[-1]
            event_type = step.event_type
        for _ in range(count):
            self.model.payloads += 1
            payload = str(self.model.payloads)
            self.attempt(self.engine.send(event_type, payload, run.name), InstanceTerminal if run.ended else None)
            if run.ended is None:
                self.world.met[f"event while {run.status}"] += any(step.event_type == event_type for _, step in waits)
                run.receive(event_type, payload, self.model.now)

    @rule(name=names, action=st.sampled_from(ACTIONS), kept=likely, unknown=unlikely)
    def manage(self, name: str, action: str, kept: bool, unknown: bool) -> None:
        run = self.model.runs[name]
        self.world.met[action] += 1
        match action:
            case "create":
                self.create(name)
            case "pause":
                self.attempt(self.engine.pause(name), InstanceTerminal if run.ended else None)
                if run.ended is None:
                    run.pause()
            case "resume":
                self.attempt(self.engine.resume(name), None)
                if run.ended is None:
                    run.resume(self.model.now)
            case "terminate":
                self.attempt(self.engine.terminate(name), InstanceTerminal if run.ended else None)
                if run.ended is None:
                    run.ended, run.held = InstanceStatus.TERMINATED, False
            case "restart" if unknown:
                self.attempt(self.engine.restart(name, "nobody"), StepNotFound)
            case _:
                self.restart(run, kept=kept)

    @precondition(lambda machine: any(run.ended for run in machine.model.runs.values()))
    @rule(kept=likely)
    def revive(self, kept: bool) -> None:
        """Begin again what has ended: nothing happens to it otherwise."""
        self.restart(next(run for run in self.model.runs.values() if run.ended), kept=kept)

    def restart(self, run: Run, *, kept: bool) -> None:
        """Begin the next run, perhaps from the last step that this one began."""
        from_step = max(run.steps, key=lambda name: run.steps[name].born, default="") if kept else ""
        self.attempt(self.engine.restart(run.name, from_step), None)
        self.keep(run)
        self.model.runs[run.name] = run.restarted(from_step, self.model.now)
        self.world.met["restarted keeping steps"] += bool(self.model.runs[run.name].steps)

    def keep(self, run: Run) -> None:
        """Remember how a run looked when the next one began."""
        rows = [*self.seen.steps.items(), *self.seen.events.items()]
        self.earlier |= {key: row for key, row in rows if key[:2] == (run.id, run.run_number)}

    # ---- workers

    @rule(owner=owners, credits=st.integers(1, 2), acked=st.booleans())
    def claim(self, owner: Owner, credits: int, acked: bool) -> None:
        due = [name for name, run in self.model.runs.items() if run.claimable(self.model.now)]
        due.sort(key=lambda name: (self.seen.tasks[name].priority, self.seen.tasks[name].run_at, name))
        holdings = self.world.run(self.engine.claim(owner, credits))
        assert {one.task.key for one in holdings} == {*due[:credits]}
        for holding in holdings:
            name = holding.task.key
            self.model.runs[name].claim(holding.held.fence, self.model.now)
            self.leases.append((holding, name))
            self.world.met["claimed"] += 1
            if acked:
                self.world.run(self.engine.renew(holding))
                self.model.runs[name].acked = True

    @anybody_holds
    @rule(ago=back, batch=reports, is_sloppy=sloppy)
    def commit(self, ago: int, batch: list[Move], is_sloppy: bool) -> None:
        self.say(ago, batch, is_sloppy=is_sloppy)

    @anybody_holds
    @rule(ago=back, batch=st.lists(moves, max_size=2), wait=st.sampled_from([SLEEP, *EXPECT]))
    def commit_and_suspend(self, ago: int, batch: list[Move], wait: Move) -> None:
        self.say(ago, [one for one in batch if one.kind not in ("suspend", "finish")] + [wait, THEN_SUSPEND])

    def say(self, ago: int, batch: list[Move], *, is_sloppy: bool = False) -> None:
        holding, name = self.lease(ago)
        run = self.model.runs[name]
        call = holding.reports(*(said(move, run, sloppy=is_sloppy) for move in batch))
        self.last[holding.held.fence] = call
        self.report(holding, name, call, "report")

    @anybody_holds
    @rule(ago=back, action=st.sampled_from(["repeat", "look", "crash"]))
    def stumble(self, ago: int, action: str) -> None:
        """A reply was lost, or a hint came, or the worker is gone."""
        holding, name = self.lease(ago, that_spoke=action == "repeat" and bool(self.last))
        match action:
            case "repeat" if holding.held.fence in self.last:
                self.report(holding, name, self.last[holding.held.fence], "repetition")
            case "crash":
                self.crash(holding, self.model.runs[name])
            case _:
                self.report(holding, name, ReportFrames(holding.held, holding.owner.session_id), "look")

    def crash(self, holding: Holding, run: Run) -> None:
        """The worker is lost, and its lease lapses."""
        mine = schema.tasks.c.id == holding.held.task_id
        held = mine & (schema.tasks.c.fence == holding.held.fence) & schema.tasks.c.locked_until.is_not(None)
        over = update(schema.tasks).where(held).values(locked_until=1)
        self.world.run(self.engine.db.run_tx(lambda tx: tx.execute(over)))
        swept = self.world.run(self.engine.sweep())
        is_held = run.held and run.fence == holding.held.fence
        assert swept == ([run.id] if is_held else [])
        if is_held:
            run.lose(self.model.now)
            self.world.met["crash"] += 1

    # ---- time

    @rule(seconds=st.sampled_from([5, 10, 20, 30, 60]))
    def advance(self, seconds: int) -> None:
        self.world.run(self.engine.advance(seconds * SECOND))
        self.model.now += seconds * SECOND

    # ---- what must hold

    @invariant()
    def all_is_well(self) -> None:
        self.seen = self.world.look()
        self.what_is_stored_is_the_models()
        self.an_instance_lives_exactly_as_long_as_it_has_a_wake()
        self.nothing_sleeps_longer_than_it_has_to()
        self.an_event_is_delivered_once_and_a_wait_ends_once()
        self.attempts_never_exceed_the_maximum()
        self.earlier_runs_never_change()
        self.world.met.update(f"is {run.status}" for run in self.model.runs.values())

    def what_is_stored_is_the_models(self) -> None:
        assert self.seen.now == self.model.now
        for name, run in self.model.runs.items():
            assert stored(self.seen, name, run) == modelled(run)

    def an_instance_lives_exactly_as_long_as_it_has_a_wake(self) -> None:
        for name, row in self.seen.instances.items():
            task = self.seen.tasks.get(name)
            assert InstanceStatus(row.status).ended is (task is None)
            if task is not None:
                assert status_of(task) == row.status
                assert task.run_number == row.run_number
                assert (task.owner is not None) is (task.status is TaskStatus.PROCESSING)
        assert set(self.seen.tasks) <= set(self.seen.instances)

    def nothing_sleeps_longer_than_it_has_to(self) -> None:
        """A run that nobody holds is due when its first wait is over, and at once if its event is there."""
        for name, task in self.seen.tasks.items():
            run = self.model.runs[name]
            has_event = any(run.event_for(step) for step in run.waits())
            if task.status is TaskStatus.PENDING:
                firsts = [step.due for step in run.waits() if step.due is not None]
                assert task.run_at <= max(min(firsts, default=0), self.seen.now)
                assert not has_event or task.run_at <= self.seen.now
            elif task.status is TaskStatus.PROCESSING and has_event:
                assert task.wake_again

    def an_event_is_delivered_once_and_a_wait_ends_once(self) -> None:
        taken = Counter(
            (row.task_id, row.run_number, row.consumed_by_step) for row in self.seen.events.values() if row.delivered_at
        )
        assert not taken or max(taken.values()) == 1
        for key, before in self.final.items():
            assert self.seen.steps[key] == before, "a step that was over has changed"
        self.final |= {key: row for key, row in self.seen.steps.items() if StepStatus(row.status).final}

    def attempts_never_exceed_the_maximum(self) -> None:
        for row in self.seen.steps.values():
            assert row.attempts <= (MOST if row.type == StepType.DO else 0)
        for task in self.seen.tasks.values():
            assert all(one.attempt <= MOST for one in load_open(task.open_steps))

    def earlier_runs_never_change(self) -> None:
        there: dict[tuple[Any, ...], Row[Any]] = {**self.seen.steps, **self.seen.events}
        assert {key: there.get(key) for key in self.earlier} == self.earlier


def stored(seen: Seen, name: str, run: Run) -> dict[str, Any]:
    """What the model knows of an instance, from its rows."""
    row, task = seen.instances[name], seen.tasks.get(name)
    mine = (row.id, row.run_number)
    events = sorted((key, one) for key, one in seen.events.items() if key[:2] == mine)
    known = {
        "run_number": row.run_number,
        "status": row.status,
        "steps": {key[2]: _step(one) for key, one in seen.steps.items() if key[:2] == mine},
        "events": [(one.type, one.payload, one.created_at, one.consumed_by_step) for _, one in events],
    }
    if task is not None:
        known |= {
            "open": [(one.name, one.attempt, one.ends_at) for one in load_open(task.open_steps)],
            "run_at": task.run_at if task.status is TaskStatus.PENDING else None,
            "flags": (task.wake_again, task.interruptions, task.acked, task.frame_number if task.owner else 0),
            "counts": (task.step_count, task.pending_events),
        }
    return known


def _step(row: Row[Any]) -> tuple[Any, ...]:
    due = row.next_retry_at if row.type == StepType.DO else row.wake_at
    payload = from_text(row.result) if row.type == StepType.WAIT_FOR_EVENT else None
    is_waiting = row.status == StepStatus.WAITING
    return row.type, row.status, row.attempts, due if is_waiting else None, payload.json if payload else None


def modelled(run: Run) -> dict[str, Any]:
    """An instance as `stored` shows its rows."""
    counted = [step for step in run.steps.values() if step.type is not StepType.SLEEP]
    known = {
        "run_number": run.run_number,
        "status": run.status,
        "steps": {
            name: (step.type, step.status, step.attempts, step.due, step.event) for name, step in run.steps.items()
        },
        "events": [(one.type, one.payload, one.at, one.taken_by) for one in run.events],
    }
    if run.ended is None:
        known |= {
            "open": run.open,
            "run_at": run.run_at if not run.held and not run.parked else None,
            "flags": (run.wake_again, run.interruptions, run.acked, run.frame if run.held else 0),
            "counts": (len(counted), sum(not one.taken_by for one in run.events)),
        }
    return known


@pytest.mark.timeout(300)
@pytest.mark.parametrize("express", [False, True], ids=["careful", "express"])
def test_runs_do_what_the_model_says(database_url: str, express: bool) -> None:
    if express and database_url.startswith("sqlite"):
        pytest.skip("express calls are PostgreSQL's")
    with world_on(database_url, express=express) as world:
        for _ in range(MOST_ROUNDS):
            stateful.run_state_machine_as_test(lambda: WorkflowMachine(world), settings=SETTINGS)  # type: ignore[arg-type]
            if all(world.met[one] for one in SELDOM):
                break

        timings = world.engine.replica.committer.timings
    # A machine in which nothing happens proves nothing.
    assert not express or min(timings.group_calls[Way.EXPRESS].total, timings.missed) > 50
    assert min(world.met["claimed"], world.met["frame accepted"]) > 50
    assert not [one for one in SELDOM if not world.met[one]]
