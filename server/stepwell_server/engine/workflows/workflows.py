"""Use cases of workflow instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.values.errors import (
    DurationOutOfRange,
    InstanceIdAlreadyExists,
    RunNotFound,
    StepNotFound,
    StepwellError,
)
from stepwell_server.domain.values.pages import Page, PageRequest, in_parts
from stepwell_server.domain.values.times import LONGEST_WAIT, SECOND, Micros
from stepwell_server.domain.workflows.events import EngineEvent, EngineEventName, created, ended, enqueued
from stepwell_server.domain.workflows.instances import (
    PRIORITY,
    Event,
    Instance,
    InstanceFilter,
    InstanceKey,
    InstanceStatus,
    NewEvent,
    NewInstance,
    Step,
    StepStatus,
    StepType,
    status_of,
    terminal,
)
from stepwell_server.engine.hooks import book as jobs
from stepwell_server.engine.spine.batches import Intake, Item
from stepwell_server.engine.spine.group import Committed, committed_by
from stepwell_server.engine.spine.replica import Spine
from stepwell_server.engine.spine.requests import Request
from stepwell_server.engine.workflows.calls import Stored, not_found
from stepwell_server.engine.workflows.watches import MESSAGE_BYTES, Watcher, Watches
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.spine import handlers, requests, sessions
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows import instances as store
from stepwell_server.storage.workflows import pages as listings
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.instances import End
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
class Workflows:
    """Workflows: create, manage, send events, look, wait."""

    spine: Spine
    intake: Intake
    watches: Watches
    tokens: PageTokens

    # ---- create

    async def create(self, new: NewInstance, item: Item, wait: Micros = 0) -> Instance:
        """Store a new instance. With a wait: answer when its run has ended, or that time has passed."""
        if wait > LONGEST_WAIT:
            raise DurationOutOfRange("wait must be at most 60 seconds", field="wait")
        mark = self.watches.mark()
        (instance,) = await self.intake.create([(new, item)])
        if isinstance(instance, StepwellError):
            raise instance
        return await self._wait(instance, wait, mark) if wait else instance

    async def create_many(
        self, items: Sequence[tuple[NewInstance | StepwellError, Item]], *, skip_existing: bool
    ) -> list[Instance | StepwellError | None]:
        """Store many, each decided by itself, in order; what could not be read is refused in its place. None: it was
        there, and that is to be skipped."""
        skipped = InstanceIdAlreadyExists if skip_existing else ()
        return [None if isinstance(one, skipped) else one for one in await self.intake.create(items)]

    # ---- manage

    async def pause(self, key: InstanceKey, request: Request) -> Instance:
        """Stop an instance: at once if nobody runs it, else at its next step boundary."""

        def change(tx: Tx, instance: Instance, task: Task | None) -> Task:
            if task is None:
                raise terminal(key, instance.status)
            return _bumped(task, task.paused())

        return await self._change_task(key, request, change)

    async def resume(self, key: InstanceKey, request: Request) -> Instance:
        """Queue a paused instance to go on, or withdraw a pause that has not happened yet."""

        def change(tx: Tx, instance: Instance, task: Task | None) -> Task | None:
            now = task_store.stamp(tx).now
            return None if task is None else _bumped(task, task.resumed(now, PRIORITY[Reason.RESUME]))

        return await self._change_task(key, request, change)

    async def terminate(self, key: InstanceKey, request: Request) -> Instance:
        """End an instance for good. What its worker still reports is not stored."""
        gone: list[Task] = []
        hooks: list[Task] = []

        def work(tx: Tx) -> Instance:
            instance, task = _locked(tx, key)
            if task is None:
                raise terminal(key, instance.status)
            at = task_store.stamp(tx)
            task_store.remove(tx, [task.id])
            store.end(tx, [End(task.id, InstanceStatus.TERMINATED, at.now, task.revision + 1)])
            gone[:] = [task]
            hooks[:] = self._tell(tx, ended(task, EngineEventName.TERMINATED, at.now), at)
            return _read(tx, key)

        return await self._once(key, request, work, lambda at: committed_by(hooks, gone, at, [one.id for one in gone]))

    async def restart(self, key: InstanceKey, from_step: str, request: Request) -> Instance:
        """Begin a new run from any status, keeping what the present one completed before a step, if one is named."""
        written: list[Task] = []

        def work(tx: Tx) -> Instance:
            written.clear()
            instance, task = _locked(tx, key)
            at = task_store.stamp(tx)
            kept = _kept(tx, instance, from_step)
            (fence,) = dialect.draw_numbers(tx, 1)
            store.restart(tx, instance, at.now, fence)
            written.append(_requeue(tx, instance, task, fence, kept, at))
            written.extend(self._tell(tx, created(key, at.now, instance.run_number + 1), at))
            if kept:
                run = RunRef(instance.id, instance.run_number + 1)
                run_store.save_steps(tx, [(run, step) for step in kept])
            return _read(tx, key)

        return await self._once(key, request, work, lambda at: _news(written, at))

    # ---- events

    async def send_event(self, new: NewEvent, item: Item) -> Stored:
        """Store an event, and wake the instance if it waits for it."""
        (stored,) = await self.intake.send([(new, item)])
        if isinstance(stored, StepwellError):
            raise stored
        return stored

    async def send_events(self, items: Sequence[tuple[NewEvent | StepwellError, Item]]) -> list[Stored | StepwellError]:
        """Store many, each decided by itself; those to one instance in this order."""
        return await self.intake.send(items)

    # ---- look

    async def get(self, key: InstanceKey) -> Instance:
        """The instance as it is now."""
        found = await self.spine.db.run_tx(lambda tx: store.get(tx, key), READ)
        if found is None:
            await self.spine.registry.require(key.handler)
            raise not_found(key)
        return found

    async def get_many(self, keys: Sequence[InstanceKey]) -> dict[InstanceKey, Instance]:
        """Those of these instances that exist, without their payloads."""
        found = await self.spine.db.run_tx(lambda tx: store.get_keys(tx, keys), READ)
        return {one.key: one for one in found}

    async def list_workflows(self, namespace: str, page: PageRequest) -> Page[WorkflowView]:
        """One page of the workflows that workers have registered, by name."""
        limit = page.limit(self.spine.registry.limits.page_size)
        await self.spine.registry.limits_of(namespace)
        scope = ["ListWorkflows", namespace]
        after = self.tokens.decode(scope, page.token) if page.token else None

        def work(tx: Tx) -> tuple[list[Registration], dict[Handler, int]]:
            found = handlers.list_registered(tx, namespace, TaskKind.WORKFLOW, limit + 1, after)
            return found, sessions.count_by_handler(tx, namespace)

        found, counts = await self.spine.db.run_tx(work, READ)
        views = [
            WorkflowView(one.handler.name, one.description, one.registered_at, counts.get(one.handler, 0))
            for one in found[:limit]
        ]
        more = len(found) > limit
        return Page(views, self.tokens.encode(scope, [views[-1].name]) if more else "")

    async def list(self, wanted: InstanceFilter, page: PageRequest) -> Page[Instance]:
        """One page of the instances of a workflow, by time of creation."""
        limit = page.limit(self.spine.registry.limits.page_size)
        await self.spine.registry.require(Handler(wanted.namespace, TaskKind.WORKFLOW, wanted.workflow))
        scope = ["ListInstances", *wanted.scope()]
        after = self.tokens.decode(scope, page.token) if page.token else None
        items, more = await self.spine.db.run_tx(lambda tx: listings.instances(tx, wanted, limit, after), READ)
        return Page(items, self.tokens.encode(scope, [items[-1].created_at, items[-1].id]) if more else "")

    async def history(
        self, key: InstanceKey, run_number: int | None, page: PageRequest, *, descending: bool
    ) -> tuple[int, Page[Step | Event]]:
        """One page of the steps and events of a run, in the order in which they were first stored."""
        limit = page.limit(self.spine.registry.limits.page_size)
        instance = await self.get(key)
        run = instance.run_number if run_number is None else run_number
        if not 0 <= run <= instance.run_number:
            raise RunNotFound("the instance has no such run", instance_id=key.instance_id, run_number=run)
        scope = ["GetHistory", key.namespace, key.workflow, key.instance_id, run, descending]
        after = self.tokens.decode(scope, page.token) if page.token else None
        ref = RunRef(instance.id, run)
        (items, more), (again, fresh) = await self.spine.db.run_tx(
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
        return await self._wait(await self.get(key), longest, mark)

    async def _wait(self, instance: Instance, longest: Micros, mark: int) -> Instance:
        watcher = Watcher()
        self.watches.follow(watcher, instance, 0, mark)
        ended = instance.status.ended
        try:
            async with self.watches.waits.until(self.watches.waits.ends(longest / SECOND)):
                while not ended:
                    ended = any(head.status.ended for head, _ in await watcher.take())
        except TimeoutError:
            pass
        finally:
            self.watches.drop(watcher, [instance.id])
        return await self.get(instance.key)

    async def changed_steps(self, instance: Instance, since: int) -> AsyncIterator[Step]:
        """Steps of the current run that changed after the revision, read as many at a time as fit into a message."""
        run, db = RunRef(instance.id, instance.run_number), self.spine.db
        sizes = await db.run_tx(lambda tx: listings.changed_sizes(tx, run, since), READ)
        for part in in_parts(sizes, MESSAGE_BYTES):
            for step in await db.run_tx(partial(listings.changed_steps, run=run, since=since, positions=part), READ):
                yield step

    # ---- parts

    async def _change_task(
        self, key: InstanceKey, request: Request, change: Callable[[Tx, Instance, Task | None], Task | None]
    ) -> Instance:
        written: list[Task] = []

        def work(tx: Tx) -> Instance:
            written.clear()
            instance, task = _locked(tx, key)
            changed = change(tx, instance, task)
            if task is not None and changed is not None and changed != task:
                at = task_store.stamp(tx)
                task_store.save(tx, [changed])
                store.copy_status(tx, {changed.id: status_of(changed)}, at.now)
                written.append(changed)
                written.extend(self._tell(tx, enqueued(task, changed, at.now), at))
            return _read(tx, key)

        return await self._once(key, request, work, lambda at: _news(written, at))

    def _tell(self, tx: Tx, event: EngineEvent | None, at: Stamp) -> Sequence[Task]:
        """Store a hook that tells the event, if somebody wants to know. Returns its task."""
        return [] if event is None else jobs.tell(tx, [event], self.spine.committer.rules, at)

    async def _once(
        self, key: InstanceKey, request: Request, work: Callable[[Tx], Instance], news: Callable[[Stamp], Any]
    ) -> Instance:
        """Do the work in a transaction, once per request id, and tell everybody."""
        request_key = request.key(key.namespace)
        await self.spine.registry.require(key.handler)

        def whole(tx: Tx) -> tuple[Instance, Stamp]:
            def again(number: int) -> Instance:
                return store.get_many(tx, [number])[number]

            instance = requests.once(tx, request_key, lambda: work(tx), dump=lambda one: one.id, load=again)
            return instance, task_store.stamp(tx)

        instance, at = await self.spine.db.run_tx(whole)
        self.spine.announce(news(at))
        return instance


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


def _news(written: Sequence[Task], at: Stamp) -> Committed:
    """What everybody is told of tasks that were changed from outside: their holders must look."""
    return committed_by(written, [], at, [task.id for task in written])


def _locked(tx: Tx, key: InstanceKey) -> tuple[Instance, Task | None]:
    found = store.lock(tx, key)
    if found is None:
        raise not_found(key)
    return found


def _read(tx: Tx, key: InstanceKey) -> Instance:
    instance = store.get(tx, key)
    assert instance is not None
    return instance


def _bumped(before: Task, after: Task) -> Task:
    """The task as of its next revision, if it changed."""
    return after if after == before else after._replace(revision=before.revision + 1)


def _kept(tx: Tx, instance: Instance, from_step: str) -> list[Step]:
    """What the run completed before the step began: those are the steps that were final when it was first stored."""
    if not from_step:
        return []
    run = RunRef(instance.id, instance.run_number)
    steps = run_store.all_steps(tx, [run])[run]
    position = next((step.position for step in steps if step.name == from_step), None)
    if position is None:
        raise StepNotFound("the current run has no such step", instance_id=instance.key.instance_id, step=from_step)
    return [step for step in steps if step.status is StepStatus.COMPLETED and step.revision < position]


def _requeue(tx: Tx, instance: Instance, task: Task | None, fence: int, kept: Sequence[Step], at: Stamp) -> Task:
    """The task of the next run: the present one taken from whoever holds it, or a new one."""
    count = sum(step.type.counts for step in kept)
    if task is None:
        new = NewTask(
            instance.key.handler,
            instance.key.instance_id,
            priority=PRIORITY[Reason.RUN],
            run_number=instance.run_number + 1,
            id=instance.id,
            revision=instance.revision + 1,
        )
        (task,) = task_store.insert(tx, [new], at).values()
    fresh = task.seized(fence)._replace(
        run_number=instance.run_number + 1,
        reason=Reason.RUN,
        priority=PRIORITY[Reason.RUN],
        run_at=at.now,
        revision=instance.revision + 2,
        frame_number=0,
        step_count=count,
        pending_events=0,
        cached_revision=0,
    )
    task_store.save(tx, [fresh])
    return fresh
