"""The spine without a server around it: a database, a committer, and lease time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, update

from stepwell_server.domain.spine.executions import OpenStep, dump_open
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.workflows.runs import RunRules
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine import calls as calls
from stepwell_server.engine.spine.claims import Claimed, Seat
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.handout import Dispatcher
from stepwell_server.engine.spine.group import Committed, HotCall
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.spine.registry import Registry
from stepwell_server.engine.spine.replica import Spine as EngineSpine
from stepwell_server.engine.spine.calls import Answer
from stepwell_server.engine.spine.wakes import DatabaseTime, WakeBus
from stepwell_server.engine.workers import Workers
from stepwell_server.storage.spine import handlers, leases
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.hints import Hints, NoHints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.schema import lease_clock, workflow_steps
from stepwell_server.storage.schema import tasks as table

ORDER = Handler("default", TaskKind.WORKFLOW, "order")
ANNA = Owner("a" * 32, 1)
BEN = Owner("b" * 32, 1)
CHARGING = dump_open([OpenStep("charge", 1, ends_at=2**60, policy=StepPolicy())])
"""The first execution of the step "charge" is under way."""


def held(task: Task) -> Held:
    """The lease of a task that was just claimed."""
    return Held(task.id, task.fence)


@dataclass
class Spine:
    """What a primitive would use of the spine, in the words of a test."""

    db: Database
    times: LeaseTimes = field(default_factory=LeaseTimes)
    committed: list[Committed] = field(default_factory=list)
    committer: Committer = field(init=False)

    def __post_init__(self) -> None:
        self.committer = Committer(self.db, RunRules(times=self.times), self.committed.append)

    def engine(self) -> EngineSpine:
        """The spine as the engine's loops know it, with a wake bus of its own that hears of every commit."""
        bus = WakeBus(DatabaseTime(virtual=False))
        dispatcher = Dispatcher(self.committer, bus, embedded=False)
        self.committer.on_commit = bus.learn
        self.committer.mark = bus.mark
        return EngineSpine(self.db, self.committer, bus, dispatcher, Registry(self.db, Limits(), bus.time), bus.learn)

    async def register(self, *hosted: Handler) -> None:
        """Say that a worker hosts these."""
        await self.db.run_tx(lambda tx: handlers.register(tx, map(Registration, hosted)))

    async def submit(self, call: HotCall) -> Any:
        """Commit a hot call."""
        return await self.committer.submit(call)

    async def schedule(self, key: str = "k", **options: Any) -> Task:
        """A new task for the handler "order", due at once unless told otherwise."""
        task = await self.submit(calls.Schedule(NewTask(options.pop("handler", ORDER), key, **options)))
        assert task is not None
        return task  # type: ignore[no-any-return]

    async def claim(self, owner: Owner = ANNA, credits: int = 1, handler: Handler = ORDER) -> list[Task]:
        """Due tasks, leased to the owner."""
        claimed: Claimed = await self.submit(calls.Claim([Seat(owner, frozenset([handler]), credits)]))
        return [one.task for one in claimed.handed]

    async def claim_one(self, owner: Owner = ANNA) -> Task:
        """The one due task."""
        (task,) = await self.claim(owner)
        return task

    async def renew(self, task: Task, owner: Owner | None = None) -> Answer:
        """Acknowledge or renew the lease under which the task was claimed."""
        assert task.owner is not None
        return await self.submit(calls.Renew(held=held(task), owner=owner or task.owner, times=self.times))  # type: ignore[no-any-return]

    async def advance(self, task: Task, number: int = 1, open_steps: str = "") -> Answer:
        """Report a result."""
        return await self.submit(calls.Advance(held=held(task), number=number, open_steps=open_steps))  # type: ignore[no-any-return]

    async def release(self, task: Task, number: int = 1, run_at: int = 0) -> Answer:
        """Give the task up until a time."""
        call = calls.Release(held=held(task), number=number, run_at=run_at, reason=Reason.WAKE, priority=0)
        return await self.submit(call)  # type: ignore[no-any-return]

    async def finish(self, task: Task, number: int = 1) -> Answer:
        """Give the task up for good."""
        return await self.submit(calls.Finish(held=held(task), number=number))  # type: ignore[no-any-return]

    async def read(self, task_id: int) -> Task | None:
        """The task as it is stored."""
        return (await self.db.run_tx(lambda tx: store.lock(tx, [task_id], waiting=True))).get(task_id)

    async def now(self) -> int:
        """The time by the database's clock."""
        return (await self.db.run_tx(store.stamp)).now

    async def pass_lease_time(self, seconds: float, *, ticking: bool = True) -> None:
        """Let time pass for leases, with the lease clock ticking meanwhile or not, by moving what is stored back."""
        micros = round(seconds * SECOND)

        def age(tx: Tx) -> None:
            tx.execute(update(table).values(locked_until=table.c.locked_until - micros))
            if not ticking:
                tx.execute(update(lease_clock).values(last_tick=lease_clock.c.last_tick - micros))

        await self.db.run_tx(age)

    async def tick(self) -> bool:
        """Tick the lease clock."""
        return await self.db.run_tx(lambda tx: leases.tick(tx, self.times))

    async def sweep(self) -> list[Task]:
        """Take lapsed leases back."""
        return await self.db.run_tx(lambda tx: leases.sweep(tx, self.times))

    async def counted(self, task_id: int) -> dict[str, int]:
        """Executions of the steps of a task that were counted."""
        mine = select(workflow_steps).where(workflow_steps.c.task_id == task_id)
        return await self.db.run_tx(lambda tx: {row.name: row.attempts for row in tx.execute(mine)})

    async def rows(self) -> list[Any]:
        """Every row of the table."""
        return await self.db.run_tx(lambda tx: list(tx.execute(select(table).order_by(table.c.id))))


def sweep_of(engine: EngineSpine, hints: Hints | None = None) -> Sweep:
    """The sweep of a replica to which no worker is connected; whom it reports to does not care."""
    return Sweep(engine, hints or NoHints(), _nobody_cares, Workers(engine, PageTokens(b"k" * 32), "replica"))


async def _nobody_cares(reachable: bool) -> None:
    pass


@asynccontextmanager
async def running(spine: Spine) -> AsyncIterator[Spine]:
    """The spine with its committer at work, and a worker that hosts "order" known."""
    work = asyncio.create_task(spine.committer.run())
    try:
        await spine.register(ORDER)
        await spine.tick()
        yield spine
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
