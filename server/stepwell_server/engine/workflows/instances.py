"""Use cases of those who look at instances, or wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.errors import DurationOutOfRange, RunNotFound
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.values.pages import Page, PageRequest, in_parts
from stepwell_server.domain.values.times import LONGEST_WAIT, SECOND, Micros
from stepwell_server.domain.workflows.instances import (
    Event,
    Instance,
    InstanceFilter,
    InstanceKey,
    Step,
    StepStatus,
    StepType,
)
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.workflows.calls import not_found
from stepwell_server.engine.workflows.watches import Watcher, Watches
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.spine import handlers, sessions
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.workflows import instances as store
from stepwell_server.storage.workflows import pages as listings
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.runs import RunRef

DEFAULT_WAIT: Micros = 30 * SECOND


@dataclass(frozen=True, slots=True)
class WorkflowView:
    """A registered workflow, as operators see it."""

    name: str
    description: str
    created_at: Micros
    worker_count: int


@dataclass(frozen=True, slots=True)
class Instances:
    """Instances of workflows: get, list, history, wait."""

    replica: Replica
    watches: Watches
    tokens: PageTokens

    async def get(self, key: InstanceKey) -> Instance:
        """The instance as it is now."""
        found = await self.replica.db.run_tx(lambda tx: store.get(tx, key), READ)
        if found is None:
            await self.replica.registry.require(key.handler)
            raise not_found(key)
        return found

    async def get_many(self, keys: Sequence[InstanceKey]) -> dict[InstanceKey, Instance]:
        """Those of these instances that exist, without their payloads."""
        found = await self.replica.db.run_tx(lambda tx: store.get_keys(tx, keys), READ)
        return {one.key: one for one in found}

    async def list_workflows(self, namespace: str, page: PageRequest) -> Page[WorkflowView]:
        """One page of the workflows that workers have registered, by name."""
        limit = page.limit(self.replica.registry.limits.page_size)
        await self.replica.registry.limits_of(namespace)
        scope = ["ListWorkflows", namespace]
        after = self.tokens.decode(scope, page.token) if page.token else None

        def work(tx: Tx) -> tuple[list[handlers.Registered], dict[Handler, int]]:
            found = handlers.list_registered(tx, namespace, TaskKind.WORKFLOW, limit + 1, after)
            return found, sessions.count_by_handler(tx, namespace)

        found, counts = await self.replica.db.run_tx(work, READ)
        views = [
            WorkflowView(one.handler.name, one.description, one.registered_at, counts.get(one.handler, 0))
            for one in found[:limit]
        ]
        more = len(found) > limit
        return Page(views, self.tokens.encode(scope, [views[-1].name]) if more else "")

    async def list(self, wanted: InstanceFilter, page: PageRequest) -> Page[Instance]:
        """One page of the instances of a workflow, by time of creation."""
        limit = page.limit(self.replica.registry.limits.page_size)
        await self.replica.registry.require(Handler(wanted.namespace, TaskKind.WORKFLOW, wanted.workflow))
        scope = ["ListInstances", *wanted.scope()]
        after = self.tokens.decode(scope, page.token) if page.token else None
        items, more = await self.replica.db.run_tx(lambda tx: listings.instances(tx, wanted, limit, after), READ)
        return Page(items, self.tokens.encode(scope, [items[-1].created_at, items[-1].id]) if more else "")

    async def history(
        self, key: InstanceKey, run_number: int | None, page: PageRequest, *, descending: bool
    ) -> tuple[int, Page[Step | Event]]:
        """One page of the steps and events of a run, in the order in which they were first stored."""
        limit = page.limit(self.replica.registry.limits.page_size)
        instance = await self.get(key)
        run = instance.run_number if run_number is None else run_number
        if not 0 <= run <= instance.run_number:
            raise RunNotFound("the instance has no such run", instance_id=key.instance_id, run_number=run)
        scope = ["GetHistory", key.namespace, key.workflow, key.instance_id, run, descending]
        after = self.tokens.decode(scope, page.token) if page.token else None
        ref = RunRef(instance.id, run)
        (items, more), (again, fresh) = await self.replica.db.run_tx(
            lambda tx: (listings.history(tx, ref, limit, after, descending=descending), _executing(tx, ref)), READ
        )
        items = [again.get(one.name, one) if isinstance(one, Step) else one for one in items]
        if instance.status.ended or run < instance.run_number:
            items = [one.left() if isinstance(one, Step) else one for one in items]
        if descending and not page.token:
            items = [*fresh, *items]  # where they will stand once they are stored
        elif not descending and not more:
            items += fresh
        return run, Page(items, self.tokens.encode(scope, [items[-1].position]) if more else "")

    # ---- wait

    async def wait(self, key: InstanceKey, longest: Micros) -> Instance:
        """The instance when it has ended, or as it is when the time has passed or the replica goes away."""
        if longest > LONGEST_WAIT:
            raise DurationOutOfRange("timeout must be at most 60 seconds", field="timeout")
        mark = self.watches.mark()
        return await self.until_ended(await self.get(key), longest, mark)

    async def until_ended(self, instance: Instance, longest: Micros, mark: int) -> Instance:
        """The instance when it has ended, or as it is when the time has passed; what changed since the mark counts."""
        if instance.status.ended:
            return instance
        watcher, ended = Watcher(), False
        self.watches.follow(watcher, instance.head, instance.revision, mark)
        try:
            async with self.watches.waits.until(self.watches.waits.ends(longest / SECOND)):
                while not ended:
                    ended = any(head.status.ended for head, _ in await watcher.take())
        except TimeoutError:
            pass
        finally:
            self.watches.drop(watcher, [instance.id])
        newest = await self.watches.reads.one(instance.id)
        if newest is None:
            raise not_found(instance.key)
        return newest

    async def changed_steps(self, instance: Instance, since: int) -> AsyncIterator[Step]:
        """Steps of the current run that changed after the revision, read as many at a time as fit into a message."""
        run, db = RunRef(instance.id, instance.run_number), self.replica.db
        sizes = await db.run_tx(lambda tx: listings.changed_sizes(tx, run, since), READ)
        for part in in_parts(sizes, PART_BYTES):
            for step in await db.run_tx(partial(listings.changed_steps, run=run, since=since, positions=part), READ):
                yield step

    def now(self) -> Micros:
        """About what the database's clock says."""
        return self.replica.bus.time.now()


def _executing(tx: Tx, run: RunRef) -> tuple[dict[str, Step], list[Step]]:
    """Steps whose bodies are executing, as far as is known: those that were stored before, by name, and new ones."""
    task = task_store.get(tx, [run.task_id]).get(run.task_id)
    if task is None or task.run_number != run.run_number:
        return {}, []
    opened = {one.name: one for one in load_open(task.open_steps)}
    stored = {step.name: step for _, step in run_store.steps_of(tx, [(run, name) for name in opened], [])}
    begun = task.claimed_at or task.run_at
    again = {
        name: step._replace(status=StepStatus.RUNNING, attempts=opened[name].attempt) for name, step in stored.items()
    }
    fresh = [
        Step(name, StepType.DO, StepStatus.RUNNING, task.revision, task.revision, begun, begun, one.attempt, one.policy)
        for name, one in opened.items()
        if name not in stored
    ]
    return again, fresh
