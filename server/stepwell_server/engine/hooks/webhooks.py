"""The replica as the worker of webhooks: it takes their hooks like any worker, and delivers them.

A delivery is an execution of the hook's own task: the spine leases, fences and counts it. It begins after the commit
of its lease, outside of any transaction. The limit of a handler bounds the deliveries to its target at a time. One
namespace has a share of all places, and a broken target rests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from stepwell_server.domain.hooks.webhooks import Completed, Failed, Gone, Post, PostResult, Target
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Frame, News, Outcome
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.payloads import EMPTY_OBJECT
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.hooks.breakers import REST, Breaker
from stepwell_server.engine.hooks.kind import HookInput
from stepwell_server.engine.hooks.posts import AT_ONCE, Deliverer
from stepwell_server.engine.hooks.targets import changed
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.calls import GiveBack, Renew, ReportFrames
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.local_workers import LocalWorker
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database.database import READ, Tx, TxOptions
from stepwell_server.storage.hooks import targets as store

REFRESH = 5.0
"""Seconds after which targets are read again that another replica may have changed."""
PAUSE = 0.5
"""Seconds before something is said again that the database did not hear."""

_DISABLE = TxOptions(label="disable-target", reserved=True)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Served:
    """A target that hooks go to."""

    target: Target
    breaker: Breaker


@dataclass(slots=True)
class Webhooks:
    """One per replica that delivers webhooks."""

    replica: Replica
    deliverer: Deliverer
    per_namespace: int
    """Deliveries of one namespace at a time."""
    now: Callable[[], float] = time.monotonic
    _worker: LocalWorker = field(init=False)
    _served: dict[Handler, Served] = field(default_factory=dict)
    _under_way: dict[Held, asyncio.Task[None]] = field(default_factory=dict)
    _asked: int = 0
    _answered: int = 0

    def __post_init__(self) -> None:
        self._worker = LocalWorker(Owner(secrets.token_hex(16)), frozenset(), self._take, self._hear, AT_ONCE)

    async def run(self) -> None:
        """Serve every target there is, until cancelled."""
        self.replica.handout.workers.enter(self._worker)
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(REFRESH)
        finally:
            self.replica.handout.leave(self._worker)
            for task in self._under_way.values():
                task.cancel()

    async def refresh(self) -> None:
        """Read the targets again: what is delivered from now on goes to them as they are."""
        self._asked += 1
        asked = self._asked
        try:
            found = await self.replica.db.run_tx(store.enabled, READ)
        except StepwellError as error:
            log.debug("targets_not_read", reason=error.reason)
            return
        if asked < self._answered:
            return  # a later question has been answered: this answer is older
        self._answered = asked
        before, worker = self._worker.wanted, self._worker
        self._served = {store.handler_of(one.namespace, one.name): self._serve(one) for one in found}
        worker.handlers = frozenset(self._served)
        for handler in worker.handlers:
            worker.shares.setdefault(handler.namespace, self.per_namespace)
            self._look_at(handler)
        if worker.wanted - before:
            self.replica.handout.workers.grant(worker, 0)  # there may be something to take now

    def _serve(self, target: Target) -> Served:
        """The target, with its breaker if it still goes to the same URL."""
        known = self._served.get(store.handler_of(target.namespace, target.name))
        return Served(target, known.breaker if known and known.target.url == target.url else Breaker())

    def _look_at(self, handler: Handler) -> None:
        """Take no hooks of a target that rests."""
        if handler in self._served and not self._served[handler].breaker.admits(self.now()):
            self._worker.resting.add(handler)
        else:
            self._worker.resting.discard(handler)

    # ---- as a worker

    def _take(self, assignment: Assignment) -> None:
        handler = assignment.task.handler
        served = self._served.get(handler)
        if served is None or not self._takes(served):  # deleted or at rest by now, or no place is left
            task = asyncio.create_task(self._give_back(assignment.held))
        else:
            self._begin(handler, served)
            task = asyncio.create_task(self._execute(assignment, served))
            task.add_done_callback(partial(self._end, handler, served))
        self._under_way[assignment.held] = task
        task.add_done_callback(partial(self._over, assignment.held))

    def _takes(self, served: Served) -> bool:
        """Whether a delivery to it may begin."""
        return self._worker.shares[served.target.namespace] > 0 and served.breaker.admits(self.now())

    def _begin(self, handler: Handler, served: Served) -> None:
        self._worker.shares[handler.namespace] -= 1
        served.breaker.begin()
        self._look_at(handler)

    def _end(self, handler: Handler, served: Served, _: object) -> None:
        self._worker.shares[handler.namespace] += 1
        served.breaker.end()
        self._look_at(handler)

    def _over(self, held: Held, task: asyncio.Task[None]) -> None:
        del self._under_way[held]
        self.replica.handout.holders.drop(self._worker, held, ended=not task.cancelled())
        self.replica.handout.workers.grant(self._worker, 1)
        if not task.cancelled() and task.exception() is not None:
            log.error("delivery_failed", task_id=held.task_id, exc_info=task.exception())

    def _hear(self, held: Held, news: News) -> None:
        if news.stale is not None and held in self._under_way:
            self._under_way[held].cancel()

    async def _execute(self, assignment: Assignment, served: Served) -> None:
        """Deliver, while the lease is kept, and report what became of it until that is stored."""
        assert isinstance(assignment.input, HookInput)
        hook, task = assignment.input.hook, assignment.task
        keeping = asyncio.create_task(self._keep(assignment.held))
        try:
            (opened,) = load_open(task.open_steps)
            attempt = Post(
                hook.idempotency_key, hook.name, hook.payload or EMPTY_OBJECT, opened.attempt, self._real_now()
            )
            result = await self.deliverer.deliver(served.target, attempt)
            self._judge(served, result)
            if isinstance(result, Gone):
                await self._disable(served.target, result)
            await self._report(assignment.held, _outcome(result))
        finally:
            keeping.cancel()

    def _judge(self, served: Served, result: PostResult) -> None:
        """Let the target rest if it seems broken."""
        is_outage = isinstance(result, Failed) and result.is_outage
        if served.breaker.note(self.now(), is_outage=is_outage):
            log.warning("target_rests", namespace=served.target.namespace, name=served.target.name, seconds=REST)

    def _real_now(self) -> int:
        return self.replica.bus.time.lease_now()

    async def _keep(self, held: Held) -> None:
        """Acknowledge the task, and renew its lease three times in its length."""
        times = self.replica.committer.rules.times
        while True:
            try:
                await self.replica.committer.submit(Renew(held, self._worker.owner, times), self._worker.sender)
            except StepwellError as error:
                log.debug("renewal_failed", reason=error.reason)
                await asyncio.sleep(PAUSE)
                continue
            await asyncio.sleep(times.lease / 3 / SECOND)

    async def _give_back(self, held: Held) -> None:
        try:
            await self.replica.committer.submit(GiveBack(held, self._worker.owner), self._worker.sender)
        except StepwellError as error:
            log.warning("give_back_failed", reason=error.reason)  # the ack window ends it

    async def _report(self, held: Held, outcome: Outcome) -> None:
        while True:
            call = ReportFrames(held, self._worker.owner.session_id, (Frame(1, outcome),))
            try:
                await self.replica.committer.submit(call, self._worker.sender)
            except StepwellError as error:
                log.warning("outcome_not_stored", reason=error.reason)
                await asyncio.sleep(PAUSE)
                continue
            return

    async def _disable(self, target: Target, gone: Gone) -> None:
        mark = self.replica.bus.notes.mark()

        def work(tx: Tx) -> Committed:
            store.disable(tx, target, gone.failure.message)
            return changed(tx, store.handler_of(target.namespace, target.name), mark)

        try:
            committed = await self.replica.db.run_tx(work, _DISABLE)
        except StepwellError as error:
            log.warning("target_not_disabled", reason=error.reason)  # the next delivery hears the same
            return
        self.replica.announce(committed)
        await self.refresh()


def _outcome(result: PostResult) -> Outcome:
    match result:
        case Completed():
            return Outcome()
        case Failed(failure, retry_after):
            return Outcome(failure, retry_after or 0)
        case Gone(failure):
            return Outcome(failure)
