"""Hooks inside a group: those that its calls store, and what their outcomes make of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from stepwell_server.domain.hooks.events import handler_of, to_hook
from stepwell_server.domain.hooks.hooks import Hook, NewHook
from stepwell_server.domain.spine.births import Birth, Wanted
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.jobs import JOB_PRIORITY, Job
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import NewTask, Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.engine.spine.births import Births, Store
from stepwell_server.engine.spine.books import Book, Group, LostLease
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Write, write
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.hooks.hooks import HookEnd
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import Stamp


def _task_of(birth: Birth[NewHook]) -> NewTask:
    new = birth.new
    return NewTask(
        new.handler, new.key.hook_id, run_at=new.due_at(birth.at), priority=JOB_PRIORITY, id=birth.id, revision=1
    )


_STORE = Store(store.insert, store.find, _task_of)


@dataclass(slots=True)
class HookBook(Book):
    """The hooks of one group."""

    rules: Rules
    births: Births[NewHook, Hook] = field(default_factory=lambda: Births(_STORE))
    _at: Stamp = field(default_factory=lambda: Stamp(0, 0))
    _jobs: dict[int, Job] = field(default_factory=dict)
    _ends_wanted: set[int] = field(default_factory=set)
    _ended_fences: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    """By hook: its namespace, and the lease under which it ended."""

    def want_end(self, task_id: int) -> None:
        """Note that a call asks how a hook ended."""
        self._ends_wanted.add(task_id)

    def read(self, tx: Tx, group: Group) -> None:
        """Read how hooks ended."""
        self._at = group.at
        if self._ends_wanted:
            self._ended_fences |= store.ended_fences(tx, self._ends_wanted)

    def open(self, task: Task) -> Job:
        """The job of a locked task, as the calls before this one left it."""
        job = self._jobs.get(task.id)
        if job is None:
            job = self._jobs[task.id] = Job(task, self._at.now, self._at.lease_now, self.rules)
        job.task = task
        return job

    def lost(self, held: Held, namespace: str | None) -> LostLease | None:
        """Why the lease of a hook is gone: the hook has ended, by the holder or otherwise."""
        job, (place, fence) = self._jobs.get(held.task_id), self._ended_fences.get(held.task_id, ("", None))
        if job is not None and job.ending is not None:
            place, fence = job.task.handler.namespace, job.ending.fence
        if fence is None or namespace not in (None, place):
            return None
        return LostLease(held.lost(), by_holder=fence == held.fence)

    def bear(self, tx: Tx, group: Group) -> None:
        """Write new hooks. Their tasks are written by the group."""
        self.births.write(tx, group)
        if self.births.stored:
            handlers.note(tx, {birth.new.handler for birth in self.births.stored.values()})

    def writes(self, group: Group) -> Iterable[Write]:
        """What became of the jobs."""
        return _ends(self._jobs.values(), group.at)


def _ends(jobs: Iterable[Job], at: Stamp) -> list[Write]:
    """How executions ended, and perhaps their hooks with them."""
    ends = [HookEnd(job.task.id, at.now, job.ended) for job in jobs if job.ended is not None]
    return [store.ending(ends)] if ends else []


def write_jobs(tx: Tx, jobs: Sequence[Job], at: Stamp) -> list[Task]:
    """Write jobs that a claim or the sweep has changed, with their tasks. Returns the tasks of those that go on."""
    gone = [job.task.id for job in jobs if job.ending is not None]
    kept = [job.task for job in jobs if job.ending is None]
    write(tx, [*_ends(jobs, at), *task_store.writing(kept, gone)])
    return kept


def hears(event: EngineEvent, rules: Rules) -> bool:
    """Whether a namespace has a handler for an engine event."""
    return handler_of(event) in rules.registered


def tell(tx: Tx, events: Sequence[EngineEvent], rules: Rules, at: Stamp) -> list[Task]:
    """Store hooks for those of the events that a namespace has a handler for. Returns their tasks."""
    wanted = [to_hook(event, uuid4().hex) for event in events if hears(event, rules)]
    if not wanted:
        return []
    numbers = dialect.draw_numbers(tx, len(wanted))
    births = [Birth(number, Wanted(new), at.now) for number, new in zip(numbers, wanted, strict=True)]
    store.insert(tx, births)
    handlers.note(tx, {new.handler for new in wanted})
    return list(task_store.insert(tx, [_task_of(birth) for birth in births], at).values())


def book_of(group: Group) -> HookBook:
    """The hooks of a group."""
    book = group.books[TaskKind.HOOK]
    assert isinstance(book, HookBook)
    return book
