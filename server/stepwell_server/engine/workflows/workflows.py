"""Use cases of workflow instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.values.asked import NOT_ASKED, Asked
from stepwell_server.domain.values.errors import (
    DurationOutOfRange,
    InstanceIdAlreadyExists,
    StepNotFound,
    StepwellError,
)
from stepwell_server.domain.values.times import LONGEST_WAIT, Micros
from stepwell_server.domain.workflows.events import WorkflowEvent, created, ended, enqueued
from stepwell_server.domain.workflows.instances import (
    PRIORITY,
    Event,
    Instance,
    InstanceKey,
    InstanceStatus,
    NewEvent,
    NewInstance,
    Step,
    StepStatus,
    status_of,
    terminal,
)
from stepwell_server.engine.spine.batches import Batches
from stepwell_server.engine.spine.births import things
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.ids import new_id
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.operators import Operator
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.workflows.calls import CreateRun, SendEvent, Stored, not_found
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import write
from stepwell_server.storage.spine import requests
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows import instances as store
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.instances import End
from stepwell_server.storage.workflows.runs import RunRef


@dataclass(frozen=True, slots=True)
class Workflows:
    """Workflows: create, manage, send events."""

    replica: Replica
    batches: Batches
    instances: Instances

    # ---- create

    async def create(self, new: NewInstance, asked: Asked, wait: Micros = 0) -> Instance:
        """Store a new instance. With a wait: answer when its run has ended, or that time has passed."""
        if wait > LONGEST_WAIT:
            raise DurationOutOfRange("wait must be at most 60 seconds", field="wait")
        mark = self.instances.watches.mark()
        (instance,) = await self._create([(new, asked)])
        if isinstance(instance, StepwellError):
            raise instance
        return await self.instances.until_ended(instance, wait, mark) if wait else instance

    async def create_many(
        self, items: Sequence[tuple[NewInstance | StepwellError, Asked]], *, skip_existing: bool
    ) -> list[Instance | StepwellError | None]:
        """Store many, each decided by itself, in order; what could not be read is refused in its place. None: it was
        there, and that is to be skipped."""
        skipped = InstanceIdAlreadyExists if skip_existing else ()
        return [None if isinstance(one, skipped) else one for one in await self._create(items)]

    async def _create(
        self, items: Sequence[tuple[NewInstance | StepwellError, Asked]]
    ) -> list[Instance | StepwellError]:
        """Store new instances, each decided by itself. Where a worker is free, they are handed out at birth."""
        mark = self.instances.watches.mark()
        answers = things(await self.batches.take(items, self._checked_instance, self._creation))
        for one in answers:
            if isinstance(one, Instance):
                self.instances.watches.bear(one, mark)
        return answers

    def _creation(self, new: NewInstance, asked: Asked) -> CreateRun:
        reservation = self.replica.handout.reserve(new.key.handler)
        return CreateRun(Wanted.by(new, asked, reservation.holder), reservation)

    async def _checked_instance(self, new: NewInstance) -> NewInstance:
        """The instance with an id, or why it is refused."""
        if not new.key.instance_id:
            new = replace(new, key=replace(new.key, instance_id=new_id()))
        new.check()
        await self.replica.registry.use(new.key.handler)
        await self.batches.check_payload(new.key.namespace, "params", new.params)
        return new

    # ---- manage

    async def pause(self, key: InstanceKey, asked: Asked) -> Instance:
        """Stop an instance: at once if nobody runs it, else at its next step boundary."""

        def change(tx: Tx, instance: Instance, task: Task | None) -> Task:
            if task is None:
                raise terminal(key, instance.status)
            return _bumped(task, task.paused())

        return await self._change_task(key, asked, change)

    async def resume(self, key: InstanceKey, asked: Asked) -> Instance:
        """Queue a paused instance to go on, or withdraw a pause that has not happened yet."""

        def change(tx: Tx, instance: Instance, task: Task | None) -> Task | None:
            now = task_store.stamp(tx).now
            return None if task is None else _bumped(task, task.resumed(now, PRIORITY[Reason.RESUME]))

        return await self._change_task(key, asked, change)

    async def terminate(self, key: InstanceKey, asked: Asked) -> Instance:
        """End an instance for good. What its worker still reports is not stored."""
        gone: list[Task] = []
        hooks: list[Task] = []

        def work(tx: Tx) -> Instance:
            instance, task = _locked(tx, key)
            if task is None:
                raise terminal(key, instance.status)
            at = task_store.stamp(tx)
            ended_by_call = End(task.id, InstanceStatus.TERMINATED, at.now, task.revision + 1)
            write(tx, [task_store.removing([task.id]), store.ending([ended_by_call])])
            gone[:] = [task]
            hooks[:] = self._tell(tx, ended(task, WorkflowEvent.TERMINATED, at.now), at)
            return _read(tx, key)

        return await self._once(key, asked, work, lambda at: committed_by(hooks, gone, at, [one.id for one in gone]))

    async def restart(self, key: InstanceKey, from_step: str, asked: Asked) -> Instance:
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
                write(tx, [run_store.saving_steps((run, step) for step in kept)])
            return _read(tx, key)

        return await self._once(key, asked, work, lambda at: _news(written, at))

    # ---- events

    async def send_event(self, new: NewEvent, asked: Asked) -> Stored:
        """Store an event, and wake the instance if it waits for it."""
        (stored,) = await self.send_events([(new, asked)])
        if isinstance(stored, StepwellError):
            raise stored
        return stored

    async def send_events(
        self, items: Sequence[tuple[NewEvent | StepwellError, Asked]]
    ) -> list[Stored | StepwellError]:
        """Store many, each decided by itself; those to one instance in this order."""
        return await self.batches.take(items, self._checked_event, _sending)

    async def _checked_event(self, new: NewEvent) -> NewEvent:
        """The event, or why it is refused."""
        new.check()
        await self.replica.registry.use(new.key.handler)
        if new.payload is not None:
            await self.batches.check_payload(new.key.namespace, "payload", new.payload)
        return new

    # ---- in transactions

    def operators(self) -> dict[type, Operator[Any, Any]]:
        """How instances are created, and events sent, as part of a transaction."""
        creation: Operator[NewInstance, Instance] = Operator(
            self._checked_instance,
            lambda new: CreateRun(Wanted(new)),
            lambda instance: instance.id,
            lambda tx, number: store.get_many(tx, [number])[number],
        )
        sending: Operator[NewEvent, Stored] = Operator(
            self._checked_event, lambda new: _sending(new, NOT_ASKED), _dump_stored, _load_stored
        )
        return {NewInstance: creation, NewEvent: sending}

    # ---- parts

    async def _change_task(
        self, key: InstanceKey, asked: Asked, change: Callable[[Tx, Instance, Task | None], Task | None]
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

        return await self._once(key, asked, work, lambda at: _news(written, at))

    def _tell(self, tx: Tx, event: EngineEvent | None, at: Stamp) -> Sequence[Task]:
        """Tell the listener of engine events. Returns the tasks that it made."""
        return [] if event is None else self.replica.kinds.listener(tx, [event], self.replica.rules, at)

    async def _once(
        self, key: InstanceKey, asked: Asked, work: Callable[[Tx], Instance], news: Callable[[Stamp], Any]
    ) -> Instance:
        """Do the work in a transaction, once per request id, and tell everybody."""
        asked.check()
        await self.replica.registry.require(key.handler)

        def whole(tx: Tx) -> tuple[Instance, Stamp]:
            def again(number: int) -> Instance:
                return store.get_many(tx, [number])[number]

            instance = requests.once(tx, key.namespace, asked, lambda: work(tx), dump=lambda one: one.id, load=again)
            return instance, task_store.stamp(tx)

        instance, at = await self.replica.db.run_tx(whole)
        self.replica.announce(news(at))
        return instance


def _sending(new: NewEvent, asked: Asked) -> SendEvent:
    return SendEvent(new, asked.request_id or None, asked.body_hash.hex() or None)


def _dump_stored(stored: Stored) -> list[Any]:
    event = stored.event
    return [event.position, event.type, event.created_at, stored.status]


def _load_stored(tx: Tx, kept: list[Any]) -> Stored:
    position, event_type, created_at, status = kept
    return Stored(Event(position, event_type, None, created_at), InstanceStatus(status))


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
