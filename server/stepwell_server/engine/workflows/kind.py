"""Workflows as a kind of the spine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import Reason, Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import InvalidWorkflowName, StepwellError, WorkflowNotFound
from stepwell_server.domain.values.names import is_name
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.assignments import Assignment, Leased
from stepwell_server.engine.spine.kinds import Committed, Kind
from stepwell_server.engine.workflows.book import Changes, RunInput, WorkflowBook, changed_statuses, ref
from stepwell_server.engine.workflows.express import ExpressRuns, Hears, nobody_hears
from stepwell_server.engine.workflows.watches import Watches
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.statements import write
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.fates import Kept
from stepwell_server.storage.spine.names import History
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import runs as store


class WorkflowKind(Kind):
    """Instances, their runs and steps, and those who follow them."""

    kind = TaskKind.WORKFLOW
    defaults: ClassVar[Mapping[str, Any]] = {"description": ""}

    def __init__(self, db: Database, tuning: Tuning = DEFAULT, hears: Hears = nobody_hears) -> None:
        self.watches = Watches(db, tuning)
        self.express = ExpressRuns(hears)

    def book(self, rules: Rules) -> WorkflowBook:
        """A book for one transaction."""
        return WorkflowBook(rules)

    # ---- hand-out

    def hand_out(self, tx: Tx, leased: Sequence[Leased], rules: Rules, at: Stamp) -> list[Assignment]:
        """Lease due runs, and decide what is over in them."""
        tasks = {one.task.id: one.task for one in leased}
        book = WorkflowBook(rules)
        for task in tasks.values():
            if not _is_fresh(task):
                book.want(task, (), again=False)
        book.read_runs(tx, tasks, at)
        assigned = [_assign(book, one) for one in leased]
        write(tx, [task_store.saving([assignment.task for assignment, _ in assigned]), *book.writes_of_steps()])
        started = workflows.start(tx, tasks, at.now)
        return [
            replace(
                assignment, input=None if known is None else replace(known, started=started.get(assignment.task.id))
            )
            for assignment, known in assigned
        ]

    def inputs(self, tx: Tx, tasks: Sequence[Task]) -> Mapping[int, RunInput]:
        """All steps of these runs, and what they were started with."""
        started = workflows.known(tx, [task.id for task in tasks])
        steps = store.all_steps(tx, [ref(task) for task in tasks])
        return {task.id: RunInput(started.get(task.id), tuple(steps[ref(task)])) for task in tasks}

    def given_up(self, tx: Tx, before: Mapping[int, Task], after: Sequence[Task], at: Stamp) -> None:
        """Copy where the instances stand now."""
        moved = changed_statuses(before, after)
        if moved:
            workflows.copy_status(tx, moved, at.now)

    # ---- handlers

    def check(self, registration: Registration) -> None:
        """Refuse a name that cannot be a workflow's."""
        if not is_name(registration.handler.name):
            raise InvalidWorkflowName(
                'a workflow is named by 1 to 64 letters, digits, "-" or "_", not beginning with "-"',
                field="name",
                workflow=registration.handler.name,
            )

    def missing(self, handler: Handler) -> StepwellError:
        """The refusal of a call about a workflow that no worker ever registered."""
        return WorkflowNotFound("no worker has registered this workflow", workflow=handler.name)

    def history(self) -> History:
        """How storage finds instances of a workflow."""
        return workflows.refer_to

    def kept(self) -> Kept:
        """Where storage finds what became of instances."""
        return workflows.KEPT

    # ---- time

    def next_timer(self, tx: Tx) -> Micros | None:
        """When the first wait of a run that is held is over."""
        return store.next_timer(tx)

    # ---- followers

    def publish(self, committed: Committed) -> Collection[int]:
        """Tell followers of instances that stand somewhere else now, or whose steps changed."""
        changed = committed.tasks.get(self.kind, frozenset())
        changes = committed.changes.get(self.kind)
        if not isinstance(changes, Changes):  # it was made outside of a group: whatever it changed may have moved
            changes = Changes(frozenset(), {})
        moved = changed - changes.unmoved
        self.watches.note(moved, changed, changes.ended)
        return moved

    def heard(self, moved: Collection[int] | None) -> None:
        """Tell followers of instances that other replicas changed."""
        if moved is None:
            self.watches.note_all()
        else:
            self.watches.note(moved)

    def drain(self) -> None:
        """End all waits for instances."""
        self.watches.drain()

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Reads what has changed for followers."""
        return {"watches": self.watches.run}


def _assign(book: WorkflowBook, leased: Leased) -> tuple[Assignment, RunInput | None]:
    """The run for its worker, and its input as far as it is known: all of a fresh run, the news of a cached one."""
    run = book.open(leased.task)
    resolved = run.claim(leased.owner, leased.fence)
    known, run.task = run.task.cached_revision, run.task._replace(cached_revision=0)
    assignment = Assignment(run.task, None, run.next_timer())
    if known or _is_fresh(leased.task):
        return assignment, RunInput(None, tuple(resolved), known)
    return assignment, None


def _is_fresh(task: Task) -> bool:
    """Whether nothing of the run was ever stored: it has just been created, and no worker has held it."""
    return task.reason is Reason.RUN and task.revision <= 1
