"""The replica as the worker of webhooks: it takes their hooks like any worker, and delivers them.

A delivery is an execution of the hook's own task: leased, fenced and counted by the spine, executed after the commit
that leased it, outside of any transaction. How many there are at a time for one target is the limit of its handler.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from stepwell_server.domain.errors import StepwellError
from stepwell_server.domain.executions import load_open
from stepwell_server.domain.frames import Frame, Outcome, RunNews
from stepwell_server.domain.leases import Held, Owner
from stepwell_server.domain.payloads import EMPTY_OBJECT
from stepwell_server.domain.tasks import Handler
from stepwell_server.domain.times import SECOND
from stepwell_server.domain.webhooks import Completed, Delivery, DeliveryResult, Failed, Gone, Target
from stepwell_server.engine import dispatch
from stepwell_server.engine.deliveries import Deliverer
from stepwell_server.engine.dispatch import Place
from stepwell_server.engine.groups import Committed
from stepwell_server.engine.run_calls import ReportFrames
from stepwell_server.engine.spine import Spine
from stepwell_server.engine.targets import changed
from stepwell_server.engine.tasks import GiveBack, Renew
from stepwell_server.storage import targets as store
from stepwell_server.storage.database import READ, Tx, TxOptions

AT_ONCE = 50
"""Deliveries of one replica at a time, to all targets."""
REFRESH = 5.0
"""Seconds after which targets are read again that another replica may have changed."""
PAUSE = 0.5
"""Seconds before something is said again that the database did not hear."""

_DISABLE = TxOptions(label="disable-target", reserved=True)

log = structlog.get_logger()


@dataclass(slots=True)
class Webhooks:
    """One per replica that delivers webhooks."""

    spine: Spine
    deliverer: Deliverer
    _place: Place = field(init=False)
    _targets: dict[Handler, Target] = field(default_factory=dict)
    _under_way: dict[Held, asyncio.Task[None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._place = Place(Owner(secrets.token_hex(16)), frozenset(), self._take, self._hear, AT_ONCE)

    def refresh(self) -> None:
        """The targets were changed here: read them again at once."""
        self._changed.set()

    async def run(self) -> None:
        """Serve every target there is, until cancelled."""
        self.spine.dispatcher.enter(self._place)
        try:
            while True:
                await self._read_targets()
                self._changed.clear()
                try:
                    async with asyncio.timeout(REFRESH):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            self.spine.dispatcher.leave(self._place)
            for task in self._under_way.values():
                task.cancel()

    async def _read_targets(self) -> None:
        try:
            found = await self.spine.db.run_tx(store.enabled, READ)
        except StepwellError as error:
            log.debug("targets_not_read", reason=error.reason)
            return
        self._targets = {store.handler_of(one.namespace, one.name): one for one in found}
        if self._place.handlers != self._targets.keys():
            self._place.handlers = frozenset(self._targets)
            self.spine.dispatcher.grant(self._place, 0)  # there may be something to take now

    # ---- as a worker

    def _take(self, deliveries: Sequence[dispatch.Delivery]) -> None:
        for one in deliveries:
            task = asyncio.create_task(self._execute(one))
            self._under_way[one.held] = task
            task.add_done_callback(partial(self._over, one.held))

    def _over(self, held: Held, task: asyncio.Task[None]) -> None:
        del self._under_way[held]
        self.spine.dispatcher.drop(self._place, held, ended=not task.cancelled())
        self.spine.dispatcher.grant(self._place, 1)
        if not task.cancelled() and task.exception() is not None:
            log.error("delivery_failed", task_id=held.task_id, exc_info=task.exception())

    def _hear(self, held: Held, news: RunNews) -> None:
        if news.stale is not None and held in self._under_way:
            self._under_way[held].cancel()

    async def _execute(self, delivery: dispatch.Delivery) -> None:
        """Deliver, while the lease is kept, and report what became of it until that is stored."""
        hook, task = delivery.handed.hook, delivery.handed.task
        assert hook is not None
        target = self._targets.get(task.handler)
        if target is None:  # deleted while this was on its way: as if it had not been claimed
            await self._give_back(delivery.held)
            return
        keeping = asyncio.create_task(self._keep(delivery.held))
        try:
            (opened,) = load_open(task.open_steps)
            attempt = Delivery(
                hook.idempotency_key, hook.name, hook.payload or EMPTY_OBJECT, opened.attempt, self._real_now()
            )
            result = await self.deliverer.deliver(target, attempt)
            if isinstance(result, Gone):
                await self._disable(target, result)
            await self._report(delivery.held, _outcome(result))
        finally:
            keeping.cancel()

    def _real_now(self) -> int:
        return self.spine.bus.time.lease_now()

    async def _keep(self, held: Held) -> None:
        """Acknowledge the task, and renew its lease three times in its length."""
        times = self.spine.committer.rules.times
        while True:
            try:
                await self.spine.committer.submit(
                    Renew(held=held, owner=self._place.owner, times=times), self._place.sender
                )
            except StepwellError as error:
                log.debug("renewal_failed", reason=error.reason)
                await asyncio.sleep(PAUSE)
                continue
            await asyncio.sleep(times.lease / 3 / SECOND)

    async def _give_back(self, held: Held) -> None:
        try:
            await self.spine.committer.submit(GiveBack(held=held, owner=self._place.owner), self._place.sender)
        except StepwellError as error:
            log.warning("give_back_failed", reason=error.reason)  # the ack window ends it

    async def _report(self, held: Held, outcome: Outcome) -> None:
        while True:
            call = ReportFrames(held, self._place.owner.session_id, (Frame(1, outcome),))
            try:
                await self.spine.committer.submit(call, self._place.sender)
            except StepwellError as error:
                log.warning("outcome_not_stored", reason=error.reason)
                await asyncio.sleep(PAUSE)
                continue
            return

    async def _disable(self, target: Target, gone: Gone) -> None:
        mark = self.spine.bus.mark()

        def work(tx: Tx) -> Committed:
            store.disable(tx, target, gone.failure.message)
            return changed(tx, store.handler_of(target.namespace, target.name), mark)

        try:
            committed = await self.spine.db.run_tx(work, _DISABLE)
        except StepwellError as error:
            log.warning("target_not_disabled", reason=error.reason)  # the next delivery hears the same
            return
        self.spine.announce(committed)
        self.refresh()


def _outcome(result: DeliveryResult) -> Outcome:
    match result:
        case Completed():
            return Outcome()
        case Failed(failure, retry_after):
            return Outcome(failure, retry_after or 0)
        case Gone(failure):
            return Outcome(failure)
