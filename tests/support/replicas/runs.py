"""A replica's engine without a network: workflows and workers as use cases, time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import URL, make_url, select, update

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.frames import Body, Frame, News, Opening
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import HOUR, MINUTE, SECOND, Micros
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.domain.workflows.frames import BeginSteps, Finish, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.workflows.instances import (
    Event,
    Instance,
    InstanceKey,
    NewEvent,
    NewInstance,
    Step,
    StepType,
)
from stepwell_server.engine.hooks.book import hears, tell
from stepwell_server.engine.hooks.kind import HookKind
from stepwell_server.engine.sessions import Hello
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.assignments import Ask, Assignment, Capacity, Claimed
from stepwell_server.engine.spine.batches import Batches
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.express import Express
from stepwell_server.engine.spine.handout import Handout
from stepwell_server.engine.spine.kinds import Committed, Kinds
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.spine.outbox import Message, Told
from stepwell_server.engine.spine.timings import Timings
from stepwell_server.engine.spine.wakes import WakeBus
from stepwell_server.engine.worker_calls import WorkerCalls
from stepwell_server.engine.workers import Workers
from stepwell_server.engine.workflows.book import RunInput
from stepwell_server.engine.workflows.calls import Stored
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.engine.workflows.kind import WorkflowKind
from stepwell_server.engine.workflows.workflows import Workflows
from stepwell_server.storage.database import clock, migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.hints import Hints, NoHints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.schema import lease_clock
from stepwell_server.storage.schema import tasks as table
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.workflows import pages as listings
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.runs import RunRef
from tests.support.patience import PATIENCE
from tests.support.replicas.spine import Recorded

T = TypeVar("T")
Said: TypeAlias = Body | tuple[Body, *tuple[Opening, ...]]
"""What a worker reports: the body of a frame, alone or with the executions that begin after it."""

ORDER = Handler("default", TaskKind.WORKFLOW, "order")
ANNA = Owner("a" * 32, 1)
BEN = Owner("b" * 32, 1)
PATIENT = StepPolicy(RetryPolicy(max_attempts=3, delay=10 * SECOND), 10 * MINUTE)
"""The policy of steps in tests: three attempts, 10 s apart and growing, of ten minutes each."""


# ---- what workers say


def done(name: str, attempt: int = 1, result: str = '"ok"', policy: StepPolicy = PATIENT) -> StepDone:
    """The body of a step returned."""
    return StepDone(name, attempt, policy, Payload(result))


def failed(name: str, attempt: int = 1, policy: StepPolicy = PATIENT, *, final: bool = False) -> StepFailed:
    """The body of a step failed."""
    return StepFailed(name, attempt, policy, Failure("Boom", "it broke", final))


def sleeps(name: str, duration: Micros = HOUR) -> Wait:
    """A branch sleeps."""
    return Wait(name, StepType.SLEEP, duration)


def expects(name: str, event_type: str = "go", timeout: Micros = HOUR) -> Wait:
    """A branch waits for an event."""
    return Wait(name, StepType.WAIT_FOR_EVENT, timeout, event_type=event_type)


def opens(name: str, attempt: int = 1, policy: StepPolicy = PATIENT, *, begun: bool = False) -> Opening:
    """The body of a step begins."""
    return Opening(name, attempt, policy, begun)


BEGIN = BeginSteps()
SUSPEND = Suspend()
REMEMBER = Suspend(cached=True)
FINISH = Finish(Payload('"the end"'))


@dataclass
class Holding:
    """A lease, as the worker that has it knows it: it numbers its frames."""

    assignment: Assignment
    number: int = 0

    @property
    def held(self) -> Held:
        """How it is named."""
        return self.assignment.held

    @property
    def task(self) -> Task:
        """The task as it was leased."""
        return self.assignment.task

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return self.assignment.holder

    @property
    def input(self) -> RunInput:
        """What its worker was told of the run."""
        assert isinstance(self.assignment.input, RunInput)
        return self.assignment.input

    def frames(self, *said: Said) -> tuple[Frame, ...]:
        """The next frames: bodies, each alone or with the openings that go with it."""
        framed = []
        for one in said:
            body, *opened = one if isinstance(one, tuple) else (one,)
            self.number += 1
            framed.append(Frame(self.number, body, tuple(opened)))
        return tuple(framed)

    def reports(self, *said: Said) -> ReportFrames:
        """The next frames as a call."""
        return ReportFrames(self.held, self.owner.session_id, self.frames(*said))


# ---- the replica


@dataclass
class Engine:
    """One replica: what its servicers would call, in the words of a test."""

    db: Database
    times: LeaseTimes = field(default_factory=LeaseTimes)
    hints: Hints = field(default_factory=NoHints)
    tuning: Tuning = DEFAULT
    express: bool = False
    """Decide by images what can be. The clock is virtual all the same: the engine's time is told whenever it moves."""

    def __post_init__(self) -> None:
        rules, kind = Rules(times=self.times, timeout_margin=0), WorkflowKind(self.db, self.tuning, hears)
        kinds = Kinds.of(kind, HookKind(), listener=tell)
        self.replica = Recorded(
            self.db,
            self.hints,
            kinds,
            rules,
            timings=Timings(),
            virtual=True,
            embedded=True,
            tuning=self.tuning,
            express=self.express,
        )
        self.watches = kind.watches
        self.batches = Batches(self.replica)
        tokens = PageTokens(b"k" * 32)
        self.workers = Workers(self.replica, tokens, "replica")
        self.worker_calls = WorkerCalls(self.replica)
        self.instances = Instances(self.replica, self.watches, tokens)
        self.workflows = Workflows(self.replica, self.batches, self.instances)
        self._sweep = Sweep(self.replica, self.workers, _nobody_cares)

    def make_express(self) -> None:
        """Decide by images what can be, from now on."""
        self.committer.express = Express(self.replica.kinds, self.replica.rules, self.bus.time.stamp)

    @property
    def committer(self) -> Committer:
        """The replica's committer."""
        return self.replica.committer

    @property
    def bus(self) -> WakeBus:
        """The replica's wake bus."""
        return self.replica.bus

    @property
    def handout(self) -> Handout:
        """The replica's hand-out."""
        return self.replica.handout

    @property
    def committed(self) -> list[Committed]:
        """Everything that it announced."""
        return self.replica.committed

    # ---- clients

    def key(self, instance_id: str = "x") -> InstanceKey:
        """An instance of the workflow "order"."""
        return InstanceKey("default", "order", instance_id)

    async def create(self, instance_id: str = "x", request_id: str = "", **options: Any) -> Instance:
        """A new instance."""
        new = NewInstance(self.key(instance_id), Payload("{}"), **options)
        return await self.workflows.create(new, asked(request_id, instance_id))

    async def send(self, event_type: str = "go", payload: str = "1", to: str = "x", request_id: str = "") -> Stored:
        """Send an event."""
        new = NewEvent(self.key(to), event_type, Payload(payload))
        return await self.workflows.send_event(new, asked(request_id, f"{to} {event_type} {payload}"))

    async def pause(self, instance_id: str = "x") -> Instance:
        """Pause an instance."""
        return await self.workflows.pause(self.key(instance_id), asked())

    async def resume(self, instance_id: str = "x") -> Instance:
        """Resume an instance."""
        return await self.workflows.resume(self.key(instance_id), asked())

    async def terminate(self, instance_id: str = "x") -> Instance:
        """Terminate an instance."""
        return await self.workflows.terminate(self.key(instance_id), asked())

    async def restart(self, instance_id: str = "x", from_step: str = "") -> Instance:
        """Restart an instance."""
        return await self.workflows.restart(self.key(instance_id), from_step, asked())

    async def get(self, instance_id: str = "x") -> Instance:
        """The instance as it is."""
        return await self.instances.get(self.key(instance_id))

    # ---- workers

    async def submit(self, call: Any) -> Any:
        """Commit a hot call."""
        return await self.committer.submit(call)

    async def claim(self, owner: Owner = ANNA, credits: int = 1, patience: Micros = 0) -> list[Holding]:
        """Due tasks, leased to the owner."""
        ask = Ask([Capacity(owner, frozenset([ORDER]), credits)], patience)
        claimed: Claimed = await self.submit(calls.Claim(ask, by_call=True))
        unread = [one for one in claimed.assigned if one.input is None]
        read = await self.db.run_tx(lambda tx: self.replica.kinds.with_inputs(tx, unread)) if unread else []
        whole = {one.held: one for one in read}
        return [Holding(whole.get(one.held, one)) for one in claimed.assigned]

    async def claim_one(self, owner: Owner = ANNA) -> Holding:
        """The one due task."""
        (holding,) = await self.claim(owner)
        return holding

    async def begin(self, owner: Owner = ANNA, instance_id: str = "x") -> Holding:
        """A new instance that a worker holds and has acknowledged."""
        await self.create(instance_id)
        holding = await self.claim_one(owner)
        await self.renew(holding)
        return holding

    async def say(self, by: Holding, *said: Said) -> News:
        """Report the next frames of a holder, in one batch."""
        news: News = await self.submit(by.reports(*said))
        return news

    async def renew(self, by: Holding, owner: Owner | None = None) -> calls.Answer:
        """Acknowledge or renew a lease."""
        renewal = calls.Renew(by.held, owner or by.owner, self.times)
        answer: calls.Answer = await self.submit(renewal)
        return answer

    async def lose_worker(self) -> None:
        """Nobody hears of any worker any more, until every lease has lapsed."""
        await self.pass_lease_time(self.times.lease / SECOND + 1)
        await self.sweep()

    async def connect(self, owner: Owner = ANNA, held: Sequence[Held] = ()) -> Connection:
        """A stream of the owner's session."""
        connection, _ = await self.workers.connect(hello(owner.session_id, held))
        return connection

    # ---- time

    async def pass_lease_time(self, seconds: float) -> None:
        """Let time pass for leases, with the lease clock ticking, by moving what is stored back."""
        micros = round(seconds * SECOND)
        await self.db.run_tx(lambda tx: tx.execute(update(table).values(locked_until=table.c.locked_until - micros)))

    async def sweep(self) -> list[int]:
        """Take lapsed leases back."""
        await self.db.run_tx(_tick)
        swept = await self._sweep.once()
        assert swept is not None
        return [task.id for task in swept.lapsed]

    async def advance(self, by: Micros) -> None:
        """Move the virtual clock."""

        def work(tx: Tx) -> store.Stamp:
            clock.move(tx, clock.lock(tx).now + by)
            return store.stamp(tx)

        self.bus.clock_moved(await self.db.run_tx(work))

    async def now(self) -> Micros:
        """What the clock says."""
        return (await self.db.run_tx(store.stamp)).now

    # ---- what is stored

    async def task(self, instance_id: str = "x") -> Task | None:
        """The task of an instance, if it lives."""
        number = (await self.get(instance_id)).id
        return (await self.db.run_tx(lambda tx: store.get(tx, [number]))).get(number)

    async def live(self, instance_id: str = "x") -> Task:
        """The task of an instance that lives."""
        task = await self.task(instance_id)
        assert task is not None
        return task

    async def steps(self, instance_id: str = "x", run_number: int | None = None) -> dict[str, Step]:
        """The steps of a run by name: of the current one, unless told otherwise."""
        instance = await self.get(instance_id)
        run = RunRef(instance.id, instance.run_number if run_number is None else run_number)
        found = await self.db.run_tx(lambda tx: run_store.all_steps(tx, [run]))
        return {step.name: step for step in found[run]}

    async def events(self, instance_id: str = "x") -> list[Event]:
        """The events of the current run."""
        instance = await self.get(instance_id)
        run = RunRef(instance.id, instance.run_number)
        found, _ = await self.db.run_tx(lambda tx: listings.history(tx, run, 1000, None, descending=False))
        return [one for one in found if isinstance(one, Event)]


async def _nobody_cares(reachable: bool) -> None:
    pass


def _tick(tx: Tx) -> None:
    tx.execute(update(lease_clock).values(last_tick=select(clock.lease_now()).scalar_subquery()))


def asked(request_id: str = "", body: str = "") -> Asked:
    """A request of a tester."""
    return Asked("tester", "method", request_id, body.encode() if request_id else b"")


def hello(session_id: str, held: Sequence[Held] = ()) -> Hello:
    """How a worker that hosts the workflow "order" introduces itself."""
    return Hello("worker", session_id, "test", 1, "default", (Registration(ORDER),), tuple(held))


async def taken(connection: Connection) -> list[Message]:
    """What goes out next on a stream."""
    async with asyncio.timeout(PATIENCE):
        return await connection.take()


async def streamed(engine: Engine, instance_id: str = "x") -> tuple[Connection, Holding]:
    """A new instance that a worker holds through a stream."""
    connection = await engine.connect(ANNA)
    await engine.create(instance_id)
    holding = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, holding.held)
    await engine.renew(holding)
    return connection, holding


async def report(connection: Connection, by: Holding, *said: Said) -> list[Told]:
    """Report through a stream, and return what it is told next."""
    await connection.report(by.held, by.frames(*said))
    return [one for one in await taken(connection) if isinstance(one, Told)]


async def next_resolved(connection: Connection) -> list[Step]:
    """The steps that the worker is told to be over next."""
    told = [one for one in await taken(connection) if isinstance(one, Told)]
    return [step for one in told for step in one.news.resolved]


async def until(condition: Callable[[], T]) -> T:
    """What the condition says once it is true."""
    async with asyncio.timeout(PATIENCE):
        while not (found := condition()):
            await asyncio.sleep(0.001)
    return found


@asynccontextmanager
async def running(*engines: Engine) -> AsyncIterator[None]:
    """The committers of the replicas at work."""
    work = [asyncio.create_task(engine.committer.run()) for engine in engines]
    try:
        for engine in engines:
            await engine.db.run_tx(lambda tx: handlers.register(tx, [ORDER]))
            await engine.db.run_tx(_tick)
        yield
    finally:
        for one in work:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one


@asynccontextmanager
async def background(*loops: Awaitable[None]) -> AsyncIterator[None]:
    """Loops of a replica at work."""
    work = [asyncio.ensure_future(loop) for loop in loops]
    try:
        yield
    finally:
        for one in work:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one


@asynccontextmanager
async def replicas_on(
    database_url: str,
    number: int = 1,
    times: LeaseTimes | None = None,
    hints: Callable[[URL], Hints] = lambda url: NoHints(),
    tuning: Tuning = DEFAULT,
    *,
    express: bool = False,
) -> AsyncIterator[list[Engine]]:
    """Replicas on one database with a virtual clock. SQLite takes one only."""
    async with AsyncExitStack() as stack:
        url = make_url(database_url)
        databases = [open_database(url, tuning) for _ in range(number)]
        for db in databases:
            stack.push_async_callback(db.close)
        await databases[0].run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=True))
        engines = [Engine(db, times or LeaseTimes(), hints(url), tuning, express) for db in databases]
        await stack.enter_async_context(running(*engines))
        yield engines
