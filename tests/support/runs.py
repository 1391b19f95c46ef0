"""A replica's engine without a network: workflows and workers as use cases, time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import make_url, select, update
from sqlalchemy.util import await_only

from stepwell_server.app import open_database
from stepwell_server.domain.spine.frames import (
    BeginSteps,
    Body,
    Finish,
    Frame,
    Opening,
    RunNews,
    StepDone,
    StepFailed,
    Suspend,
    Wait,
)
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.workflows.runs import RunRules
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.times import HOUR, MINUTE, Micros, SECOND
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.workflows.instances import (
    Event,
    Instance,
    InstanceKey,
    NewEvent,
    NewInstance,
    Step,
    StepType,
)
from stepwell_server.engine.spine import calls as calls
from stepwell_server.engine.spine.claims import Claimed, Handed, Seat
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.handout import Dispatcher
from stepwell_server.engine.spine.group import Committed
from stepwell_server.engine.spine.batches import Intake, Item
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.spine.outbox import Message, News
from stepwell_server.engine.spine.registry import Registry
from stepwell_server.engine.spine.requests import Request
from stepwell_server.engine.workflows.calls import ReportFrames, Stored
from stepwell_server.engine.spine.replica import Spine
from stepwell_server.engine.spine.wakes import DatabaseTime, WakeBus
from stepwell_server.engine.workflows.watches import Watches
from stepwell_server.engine.workers import Hello, Workers
from stepwell_server.engine.workflows.workflows import Workflows
from stepwell_server.storage.database import clock, migrate
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.workflows import pages as listings
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.failpoints import BEFORE_COMMIT
from stepwell_server.storage.database.hints import NoHints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.workflows.runs import RunRef
from stepwell_server.storage.schema import lease_clock
from stepwell_server.storage.schema import tasks as table
from tests.support.patience import PATIENCE

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

    handed: Handed
    number: int = 0

    @property
    def held(self) -> Held:
        """How it is named."""
        return Held(self.handed.task.id, self.handed.task.fence)

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        assert self.handed.task.owner is not None
        return self.handed.task.owner

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
    committed: list[Committed] = field(default_factory=list)
    """Everything that it announced."""

    def __post_init__(self) -> None:
        self.bus = WakeBus(DatabaseTime(virtual=True))
        registry = Registry(self.db, RunRules().limits, self.bus.time)
        rules = RunRules(times=self.times, timeout_margin=0, namespaces=registry.namespaces)
        self.watches = Watches(self.db)
        self.committer = Committer(self.db, rules, self._announce, self.bus.mark)
        self.dispatcher = Dispatcher(self.committer, self.bus, embedded=True)
        self.spine = Spine(self.db, self.committer, self.bus, self.dispatcher, registry, self._announce)
        tokens = PageTokens(b"k" * 32)
        self.workers = Workers(self.spine, tokens, "replica")
        self.workflows = Workflows(self.spine, Intake(self.spine), self.watches, tokens)
        self._sweep = Sweep(self.spine, NoHints(), _nobody_cares, self.workers)

    def _announce(self, committed: Committed) -> None:
        self.committed.append(committed)
        self.bus.learn(committed)
        self.watches.note(committed.statuses, committed.runs, committed.ended)
        self.dispatcher.look(committed.told)

    # ---- clients

    def key(self, instance_id: str = "x") -> InstanceKey:
        """An instance of the workflow "order"."""
        return InstanceKey("default", "order", instance_id)

    async def create(self, instance_id: str = "x", request_id: str = "", **options: Any) -> Instance:
        """A new instance."""
        new = NewInstance(self.key(instance_id), Payload("{}"), **options)
        return await self.workflows.create(new, Item(request_id, instance_id.encode()))

    async def send(self, event_type: str = "go", payload: str = "1", to: str = "x", request_id: str = "") -> Stored:
        """Send an event."""
        new = NewEvent(self.key(to), event_type, Payload(payload))
        return await self.workflows.send_event(new, Item(request_id, f"{to} {event_type} {payload}".encode()))

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
        return await self.workflows.get(self.key(instance_id))

    # ---- workers

    async def submit(self, call: Any) -> Any:
        """Commit a hot call."""
        return await self.committer.submit(call)

    async def claim(self, owner: Owner = ANNA, credits: int = 1, patience: Micros = 0) -> list[Holding]:
        """Due tasks, leased to the owner."""
        claimed: Claimed = await self.submit(calls.Claim([Seat(owner, frozenset([ORDER]), credits)], patience))
        return [Holding(one) for one in claimed.handed]

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

    async def say(self, by: Holding, *said: Said) -> RunNews:
        """Report the next frames of a holder, in one batch."""
        news: RunNews = await self.submit(by.reports(*said))
        return news

    async def renew(self, by: Holding, owner: Owner | None = None) -> calls.Answer:
        """Acknowledge or renew a lease."""
        renewal = calls.Renew(held=by.held, owner=owner or by.owner, times=self.times)
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


def asked(request_id: str = "") -> Request:
    """A request by somebody."""
    return Request("tester", "method", request_id, b"")


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
    engine.dispatcher.hold(connection.place, holding.held)
    await engine.renew(holding)
    return connection, holding


async def report(connection: Connection, by: Holding, *said: Said) -> list[News]:
    """Report through a stream, and return what it is told next."""
    await connection.report(by.held, by.frames(*said))
    return [one for one in await taken(connection) if isinstance(one, News)]


async def next_resolved(connection: Connection) -> list[Step]:
    """The steps that the worker is told to be over next."""
    told = [one for one in await taken(connection) if isinstance(one, News)]
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
            await engine.db.run_tx(lambda tx: handlers.register(tx, [Registration(ORDER)]))
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
    database_url: str, number: int = 1, times: LeaseTimes | None = None
) -> AsyncIterator[list[Engine]]:
    """Replicas on one database with a virtual clock. SQLite takes one only."""
    async with AsyncExitStack() as stack:
        databases = [open_database(make_url(database_url)) for _ in range(number)]
        for db in databases:
            stack.push_async_callback(db.close)
        await databases[0].run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=True))
        engines = [Engine(db, times or LeaseTimes()) for db in databases]
        await stack.enter_async_context(running(*engines))
        yield engines


# ---- forcing what only happens now and then; on PostgreSQL, where a transaction can wait in the middle


@dataclass
class Gate:
    """A place where a transaction waits until a test lets it go."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_here(self) -> None:
        """Say that somebody is here, and wait."""
        self.reached.set()
        await self.opened.wait()


@asynccontextmanager
async def held_before_commit(
    engine: Engine, call: Awaitable[T], label: str = "group"
) -> AsyncIterator[asyncio.Task[T]]:
    """The call has done all its work and waits with its commit; it is let go when the block ends."""
    gate = Gate()

    def stop(point: str) -> None:
        if point == f"{BEFORE_COMMIT}/{label}" and not gate.reached.is_set():
            await_only(gate.wait_here())

    with engine.db.failpoints.install(stop):
        calling = asyncio.ensure_future(call)
        async with asyncio.timeout(PATIENCE):
            await gate.reached.wait()
        try:
            yield calling
        finally:
            gate.opened.set()
            await asyncio.wait([calling])


@contextmanager
def before_statement(engine: Engine, words: str, action: Callable[[], Awaitable[Any]]) -> Iterator[list[str]]:
    """Something else happens, once, right before the first statement of the replica that has these words in it."""
    met: list[str] = []

    def intervene(_tx: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if words in statement and not met:
            met.append(statement)
            await_only(action())

    pools = [getattr(engine.db._backend, name).sync_engine for name in ("_pool", "_reserved")]
    for pool in pools:
        sqlalchemy_event.listen(pool, "before_cursor_execute", intervene)
    try:
        yield met
    finally:
        for pool in pools:
            sqlalchemy_event.remove(pool, "before_cursor_execute", intervene)


async def undecided(engine: Engine) -> None:
    """Return once a call of the replica has met a lock and takes the slow lane."""
    await until(lambda: engine.committer._slow)
