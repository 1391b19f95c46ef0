"""Jobs inside a group: what its calls make of them is written at once, and so are the hooks that it stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from stepwell_server.domain.hooks.hooks import HANDLER_NOT_FOUND, UNSERVED_FOR, Hook, HookKey, NewHook
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import JOB_PRIORITY, Job
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import NewTask, Task
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.events import EngineEvent, EngineEventName, created, ended, enqueued
from stepwell_server.domain.workflows.runs import Run, RunRules
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.hooks.hooks import FoundHook, HookBirth, HookEnd
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.handlers import HandlerWake
from stepwell_server.storage.spine.tasks import Stamp

UNSERVED_AT_ONCE = 500

if TYPE_CHECKING:
    from stepwell_server.engine.spine.group import Group


@dataclass(frozen=True, slots=True)
class Triggered:
    """A hook to store, and what its sender calls the request."""

    new: NewHook
    request_id: str | None = None
    request_hash: str | None = None


@dataclass(slots=True)
class JobBook:
    """The jobs of one group, and the hooks that it stores."""

    rules: RunRules
    at: Stamp
    jobs: dict[int, Job] = field(default_factory=dict)
    ended_fences: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    """By hook: its namespace, and the lease under which it ended."""
    births: dict[HookKey, Triggered] = field(default_factory=dict)
    stored: dict[HookKey, HookBirth] = field(default_factory=dict)
    found_by_id: dict[HookKey, FoundHook] = field(default_factory=dict)
    found_by_request: dict[tuple[str, str | None], FoundHook] = field(default_factory=dict)

    def open(self, task: Task) -> Job:
        """The job of a locked task, as the calls before this one left it."""
        job = self.jobs.get(task.id)
        if job is None:
            job = self.jobs[task.id] = Job(task, self.at.now, self.at.lease_now, self.rules)
        job.task = task
        return job

    def ended_fence(self, task_id: int, namespace: str | None) -> int | None:
        """The lease under which a job ended, of that namespace or of any. None: it has not."""
        job, (place, fence) = self.jobs.get(task_id), self.ended_fences.get(task_id, ("", None))
        if job is not None and job.ending is not None:
            place, fence = job.task.handler.namespace, job.ending.fence
        return fence if namespace in (None, place) else None

    def trigger(self, new: Triggered) -> None:
        """Store a hook, unless there is one of its id."""
        self.births.setdefault(new.new.key, new)

    def write(self, tx: Tx, group: Group) -> None:
        """Write what became of the jobs, and new hooks. Their tasks are written by the group."""
        ends = [HookEnd(one.task.id, self.at.now, one.ended) for one in self.jobs.values() if one.ended is not None]
        if ends:
            store.end(tx, ends)
        for event in _events(group):
            self.trigger(Triggered(event.to_hook(uuid4().hex)))
        if self.births:
            self._write_births(tx, group)

    def _write_births(self, tx: Tx, group: Group) -> None:
        wanted = list(self.births.values())
        numbers = dialect.draw_numbers(tx, len(wanted))
        births = [
            HookBirth(number, one.new, self.at.now, one.request_id, one.request_hash)
            for number, one in zip(numbers, wanted, strict=True)
        ]
        stored = store.insert(tx, births)
        for birth in births:
            if birth.id in stored:
                self.stored[birth.new.key] = birth
                group.schedule(_task_of(birth))
        if len(stored) < len(births):
            for found in store.find(tx, [one for one in births if one.id not in stored]):
                self.found_by_id[found.hook.key] = found
                if found.request_id is not None:
                    self.found_by_request[found.hook.key.namespace, found.request_id] = found


def claim(tx: Tx, leased: Sequence[tuple[Task, Owner, int]], rules: RunRules, at: Stamp) -> list[tuple[Task, Hook]]:
    """Lease due hooks under these fences. Those whose last execution was lost with its holder fail here."""
    found = store.get_many(tx, [task.id for task, _, _ in leased])
    jobs = [Job(task, at.now, at.lease_now, rules) for task, _, _ in leased]
    for job, (task, owner, fence) in zip(jobs, leased, strict=True):
        hook = found[task.id]
        job.claim(owner, fence, hook.attempts, hook.policy)
    ends = [HookEnd(one.task.id, at.now, one.ended) for one in jobs if one.ended is not None]
    if ends:
        store.end(tx, ends)
    gone = [one.task.id for one in jobs if one.ending is not None]
    if gone:
        task_store.remove(tx, gone)
    handed = [one.task for one in jobs if one.ending is None]
    if handed:
        task_store.save(tx, handed)
    return [(task, found[task.id]) for task in handed]


def unserved_until(wakes: Iterable[HandlerWake]) -> dict[Handler, Micros]:
    """When the first hook of each handler fails that nobody ever registered."""
    unknown = [one for one in wakes if one.handler.kind is TaskKind.HOOK and not one.is_registered]
    return {one.handler: one.due_at + UNSERVED_FOR for one in unknown if one.due_at is not None}


def fail_unserved(tx: Tx, wakes: Iterable[HandlerWake], rules: RunRules) -> list[Task]:
    """Count an execution as failed of each hook that is due for too long because nobody ever registered its name.

    Returns the tasks of those that are tried again: after another such time they fail again.
    """
    until = unserved_until(wakes)
    if not until:
        return []
    now = task_store.stamp(tx).now
    unknown = [handler for handler, at in until.items() if at <= now]
    found = store.lock_unserved(tx, unknown, UNSERVED_FOR, UNSERVED_AT_ONCE) if unknown else []
    if not found:
        return []
    at = task_store.stamp(tx)
    jobs = [Job(task, at.now, at.lease_now, rules) for task, _ in found]
    for job, (_, hook) in zip(jobs, found, strict=True):
        job.give_up(hook.attempts, hook.policy, Failure(HANDLER_NOT_FOUND, f"nobody hosts a hook named {hook.name}"))
    store.end(tx, [HookEnd(one.task.id, at.now, one.ended) for one in jobs if one.ended is not None])
    gone = [one.task.id for one in jobs if one.ending is not None]
    if gone:
        task_store.remove(tx, gone)
    tried_again = [one.task for one in jobs if one.ending is None]
    if tried_again:
        task_store.save(tx, tried_again)
    return tried_again


def tell(tx: Tx, events: Iterable[EngineEvent], rules: RunRules, at: Stamp) -> list[Task]:
    """Store hooks for those of the events that somebody wants to know of. Returns their tasks."""
    wanted = [event.to_hook(uuid4().hex) for event in events if event.handler in rules.registered]
    if not wanted:
        return []
    numbers = dialect.draw_numbers(tx, len(wanted))
    births = [HookBirth(number, new, at.now) for number, new in zip(numbers, wanted, strict=True)]
    store.insert(tx, births)
    handlers.note(tx, {one.handler for one in wanted})
    return list(task_store.insert(tx, [_task_of(one) for one in births], at).values())


def _task_of(birth: HookBirth) -> NewTask:
    new = birth.new
    return NewTask(
        new.handler, new.key.hook_id, run_at=birth.process_at, priority=JOB_PRIORITY, id=birth.id, revision=1
    )


def _events(group: Group) -> list[EngineEvent]:
    """What happened to workflows in the group, as far as somebody wants to know."""
    rules, now = group.runs.rules, group.at.now
    if not rules.registered:
        return []
    told: list[EngineEvent | None] = [created(key, now) for key in group.runs.born]
    told += [_ended(run, now) for run in group.runs.runs.values() if run.ending is not None]
    told += [
        enqueued(group.locked[task.id], task, now)
        for task in group.changed.values()
        if task.handler.kind is TaskKind.WORKFLOW
    ]
    return [one for one in told if one is not None and one.handler in rules.registered]


def _ended(run: Run, now: Micros) -> EngineEvent:
    assert run.ending is not None
    failure = run.ending.failure
    name = EngineEventName.COMPLETED if failure is None else EngineEventName.ERRORED
    return ended(run.task, name, now, failure)
