"""The spine without a server around it: a database, a committer, and lease time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, update

from stepwell_server.domain.spine.executions import OpenStep, dump_open
from stepwell_server.domain.spine.frames import Body, Frame, FrameAnswer, News
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import NewTask, Task, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import SECOND
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.assignments import Ask, Capacity, Claimed
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import Answer
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.definitions import declare
from stepwell_server.engine.spine.kinds import Committed, Kinds
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.timings import Timings
from stepwell_server.engine.workers import Workers
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.hints import Hints, NoHints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.schema import lease_clock
from stepwell_server.storage.schema import tasks as table
from stepwell_server.storage.spine import leases
from stepwell_server.storage.spine import tasks as store
from tests.support.replicas import tickets
from tests.support.replicas.tickets import TicketKind

ORDER = Handler("default", TaskKind.WORKFLOW, "order")
ANNA = Owner("a" * 32, 1)
BEN = Owner("b" * 32, 1)
CHARGING = dump_open([OpenStep("charge", 1, ends_at=2**60, policy=StepPolicy())])
"""The first execution of the step "charge" is under way."""


def held(task: Task) -> Held:
    """The lease of a task that was just claimed."""
    return Held(task.id, task.fence)


class Recorded(Replica):
    """A replica that keeps what it announced."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.committed: list[Committed] = []

    def announce(self, committed: Committed) -> None:
        """Keep it as well, and the images of whatever is held: tests hold tasks without streams."""
        self.committed.append(committed)
        super().announce(committed)
        if self.committer.express is not None:
            known = {task_id: image for task_id, image in committed.images.items() if image is not None}
            self.committer.express.images.update(known)


@dataclass
class Spine:
    """What a primitive would use of the spine, in the words of a test."""

    db: Database
    times: LeaseTimes = field(default_factory=LeaseTimes)
    hints: Hints = field(default_factory=NoHints)
    kind: TicketKind = field(default_factory=TicketKind)
    tuning: Tuning = DEFAULT

    def __post_init__(self) -> None:
        rules, kinds = Rules(times=self.times), Kinds.of(self.kind)
        self.replica = Recorded(
            self.db, self.hints, kinds, rules, timings=Timings(), virtual=False, embedded=False, tuning=self.tuning
        )

    @property
    def committer(self) -> Committer:
        """The replica's committer."""
        return self.replica.committer

    @property
    def committed(self) -> list[Committed]:
        """What the replica announced."""
        return self.replica.committed

    async def register(self, *hosted: Handler) -> None:
        """Say that a worker hosts these."""
        defined = self.replica.kinds.define(map(Registration, hosted))
        await self.db.run_tx(lambda tx: declare(tx, defined))

    async def submit(self, call: HotCall) -> Any:
        """Commit a hot call."""
        return await self.committer.submit(call)

    async def schedule(self, key: str = "k", **options: Any) -> Task:
        """A new task for the handler "order", due at once unless told otherwise."""
        task = await self.submit(tickets.Schedule(NewTask(options.pop("handler", ORDER), key, **options)))
        assert task is not None
        return task  # type: ignore[no-any-return]

    async def claim(self, owner: Owner = ANNA, credits: int = 1, *hosted: Handler) -> list[Task]:
        """Due tasks of these handlers, or of "order", leased to the owner."""
        ask = Ask([Capacity(owner, frozenset(hosted or [ORDER]), credits)])
        claimed: Claimed = await self.submit(calls.Claim(ask, by_call=True))
        return [assignment.task for assignment in claimed.assigned]

    async def claim_one(self, owner: Owner = ANNA) -> Task:
        """The one due task."""
        (task,) = await self.claim(owner)
        return task

    async def renew(self, task: Task, owner: Owner | None = None) -> Answer:
        """Acknowledge or renew the lease under which the task was claimed."""
        assert task.owner is not None
        return await self.submit(calls.Renew(held(task), owner or task.owner, self.times))  # type: ignore[no-any-return]

    async def advance(self, task: Task, number: int = 1, open_steps: str = "") -> FrameAnswer:
        """Report a result."""
        return await self.report(task, number, tickets.Advance(open_steps))

    async def release(self, task: Task, number: int = 1, run_at: int = 0) -> FrameAnswer:
        """Give the task up until a time."""
        return await self.report(task, number, tickets.Release(run_at))

    async def finish(self, task: Task, number: int = 1) -> FrameAnswer:
        """Give the task up for good."""
        return await self.report(task, number, tickets.Finish())

    async def report(self, task: Task, number: int, body: Body) -> FrameAnswer:
        """Report a frame about a task, as the worker that claimed it."""
        return frame_answer(await self.submit(frame_of(task, number, body)), number)

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

    def counted(self, task_id: int) -> dict[str, int]:
        """Executions of a task that were counted because their holder was lost."""
        return Counter(step for number, _, step in self.kind.charged if number == task_id)

    async def rows(self) -> list[Any]:
        """Every row of the table."""
        return await self.db.run_tx(lambda tx: list(tx.execute(select(table).order_by(table.c.id))))


def frame_of(task: Task, number: int, body: Body) -> calls.ReportFrames:
    """A frame about a task, as a call of the worker that claimed it."""
    assert task.owner is not None
    return calls.ReportFrames(held(task), task.owner.session_id, (Frame(number, body),))


def frame_answer(news: News, number: int) -> FrameAnswer:
    """The answer to the only frame of a call."""
    (answer,) = news.answers or (FrameAnswer(number, Verdict.STALE),)
    return answer


def sweep_of(replica: Replica) -> Sweep:
    """The sweep of a replica to which no worker is connected; it reports to nobody."""
    return Sweep(replica, Workers(replica, PageTokens(b"k" * 32), "replica"), _nobody_cares)


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
