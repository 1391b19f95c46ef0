"""Runs inside a group: what its calls must know of them is read at once, what they change is written at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stepwell_server.domain.spine.births import Birth
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Frame
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import RunSuperseded
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.events import WorkflowEvent, created, ended, enqueued
from stepwell_server.domain.workflows.frames import Wait
from stepwell_server.domain.workflows.images import is_image
from stepwell_server.domain.workflows.instances import (
    PRIORITY,
    Event,
    Head,
    Instance,
    InstanceKey,
    InstanceStatus,
    NewInstance,
    Step,
    status_of,
)
from stepwell_server.domain.workflows.runs import Run
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.births import Births, Store
from stepwell_server.engine.spine.books import Book, Group
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Statement, Write
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import runs as store
from stepwell_server.storage.workflows.instances import End, Started
from stepwell_server.storage.workflows.runs import RunRef, SentEvent, Wanted


@dataclass(frozen=True, slots=True)
class RunInput:
    """What a worker must know of a run."""

    started: Started | None
    steps: tuple[Step, ...] = ()
    known_revision: int = 0
    """Revision of the run that the worker is believed to have in memory; the steps are those that changed since. 0: it
    has none, and the steps are all there are."""

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        params = 0 if self.started is None else self.started.params.size
        return 100 + params + sum(step.size for step in self.steps)

    def after(self, offset: int) -> RunInput:
        """The same without its first steps, which the worker has."""
        return replace(self, steps=self.steps[offset:])


@dataclass(frozen=True, slots=True)
class Changes:
    """What followers of instances are told of a group."""

    unmoved: frozenset[int]
    """Those that stand where they stood, though steps or events changed; and newborn ones, which nobody follows yet."""
    ended: Mapping[int, Head]


@dataclass(slots=True)
class _Reads:
    """What is to be read."""

    names: set[tuple[RunRef, str]] = field(default_factory=set)
    runs: set[RunRef] = field(default_factory=set)
    """Runs whose waits are looked at, and the events that they wait for."""
    must_repeat: set[RunRef] = field(default_factory=set)
    """Runs whose server-side changes are read again, because the worker may have missed them."""
    waits_to_come: Counter[tuple[RunRef, str]] = field(default_factory=Counter)
    """Types of events that a call of the group will wait for."""
    without_task: set[InstanceKey] = field(default_factory=set)
    requests: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class _Ahead:
    """What is read in the round trip that locks the tasks: steps of these names, and all that wait."""

    names: set[tuple[int, str]] = field(default_factory=set)
    task_ids: set[int] = field(default_factory=set)


def ref(task: Task) -> RunRef:
    """The run that a task advances."""
    return RunRef(task.id, task.run_number)


def task_of(birth: Birth[NewInstance]) -> NewTask:
    """The task of a new instance."""
    key = birth.new.key
    return NewTask(
        key.handler, key.instance_id, priority=PRIORITY[Reason.RUN], id=birth.id, lease=birth.lease, revision=1
    )


_STORE = Store(workflows.insert, workflows.find, task_of)


@dataclass(slots=True)
class WorkflowBook(Book):
    """The runs of one group."""

    rules: Rules
    at: Stamp = field(default_factory=lambda: Stamp(0, 0))
    runs: dict[int, Run] = field(default_factory=dict)
    sent: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    """Events by (namespace, request id): those of earlier requests, and those of this group."""
    without_task: dict[InstanceKey, Instance] = field(default_factory=dict)
    """Instances whose task was looked for in vain."""
    births: Births[NewInstance, Instance] = field(default_factory=lambda: Births(_STORE))
    _ahead: _Ahead = field(default_factory=_Ahead)
    _reads: _Reads = field(default_factory=_Reads)
    _steps: dict[int, list[Step]] = field(default_factory=lambda: defaultdict(list))
    _events: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _fresh_events: list[SentEvent] = field(default_factory=list)

    # ---- what is to be read

    def foresee(self, task_id: int, frames: Sequence[Frame]) -> None:
        """Note the steps that frames name, and the waits of their run."""
        self._ahead.task_ids.add(task_id)
        self._ahead.names.update((task_id, name) for name in _named(frames))

    def ahead(self) -> Iterable[Statement[None]]:
        """Reads what was foreseen."""
        return (
            [store.steps_ahead(self._ahead.names, self._ahead.task_ids, partial(_keep, self._steps))]
            if self._ahead.task_ids
            else ()
        )

    def want(self, task: Task, frames: Sequence[Frame], *, again: bool) -> None:
        """Note the steps in question, and the waits."""
        run = self.want_waits(task)
        if again:
            self._reads.must_repeat.add(run)
        self._reads.names.update((run, name) for name in _named(frames))
        for frame in frames:
            if isinstance(frame.body, Wait) and frame.body.event_type:
                self._reads.waits_to_come[run, frame.body.event_type] += 1
        self._reads.names.update((run, step.name) for step in load_open(task.open_steps))

    def want_waits(self, task: Task) -> RunRef:
        """Note that the waits of a run are looked at, and the events that they wait for."""
        run = ref(task)
        self._reads.runs.add(run)
        return run

    def want_instance(self, key: InstanceKey) -> None:
        """Note that a call asks for an instance that has no task."""
        self._reads.without_task.add(key)

    def want_request(self, namespace: str, request_id: str) -> None:
        """Note that a call asks whether its event was stored before."""
        self._reads.requests.add((namespace, request_id))

    # ---- read

    def read(self, tx: Tx, group: Group) -> None:
        """Read all that was noted, in a few statements."""
        self.read_runs(tx, group.locked, group.at)
        if self._reads.without_task:
            self.without_task |= {one.key: one for one in workflows.get_keys(tx, self._reads.without_task)}
        if self._reads.requests:
            self.sent |= store.sent_before(tx, self._reads.requests)

    def read_runs(self, tx: Tx, tasks: Mapping[int, Task], at: Stamp) -> None:
        """Read what was noted of these locked tasks."""
        self.at, reads = at, self._reads
        names = {(run, name) for run, name in reads.names if (run.task_id, name) not in self._ahead.names}
        runs = {run for run in reads.runs if run.task_id not in self._ahead.task_ids}
        if names or runs:
            _keep(self._steps, store.steps_of(tx, names, runs))
        if reads.must_repeat:
            _keep(self._steps, store.changed_by_themselves(tx, reads.must_repeat))
        wanted = self._wanted_events(tasks)
        if wanted:
            for task_id, event in store.pending_events(tx, wanted):
                self._events[task_id].append(event)

    def _wanted_events(self, tasks: Mapping[int, Task]) -> list[Wanted]:
        """How many events of each type the waits can take, of runs that have any at all."""
        counts = Counter(self._reads.waits_to_come)
        for run in self._reads.runs:
            counts.update((run, step.event_type) for step in self._steps[run.task_id] if step.event_type)
        return [
            Wanted(run, event_type, count)
            for (run, event_type), count in counts.items()
            if tasks[run.task_id].pending_events > 0
        ]

    def open(self, task: Task) -> Run:
        """The run of a locked task, as the calls before this one left it."""
        run = self.runs.get(task.id)
        if run is None:
            steps = {step.name: step for step in self._steps[task.id]}
            run = Run(task, self.at.now, self.at.lease_now, self.rules, steps, list(self._events[task.id]))
            self.runs[task.id] = run
        run.task = task  # others may have changed it since
        return run

    def ended_here(self, task_id: int) -> InstanceStatus | None:
        """How an earlier call of the group ended an instance. None: it did not."""
        run = self.runs.get(task_id)
        return None if run is None or run.ending is None else end_of(run).status

    def superseded(self, held: Held) -> RunSuperseded:
        """The refusal of a report whose instance was ended or restarted."""
        return RunSuperseded("the run was ended or restarted", task_id=held.task_id, fence=held.fence)

    # ---- change

    def note_sent(self, sent: SentEvent) -> None:
        """Store an event that a run received."""
        self._fresh_events.append(sent)
        if sent.request_id is not None:
            self.sent[sent.namespace, sent.request_id] = sent

    # ---- write

    def bear(self, tx: Tx, group: Group) -> None:
        """Write new instances."""
        self.births.write(tx, group)

    def writes(self, group: Group) -> Iterable[Write]:
        """What became of the runs."""
        yield from self.writes_of_steps()
        ends = _ends(self.runs.values())
        if ends:
            yield workflows.ending(ends)
        moved = changed_statuses(group.locked, group.changed.values())
        if moved:
            yield workflows.copying_status(moved, self.at.now)

    def writes_of_steps(self) -> Iterable[Write]:
        """The steps that changed, and the events that came and went."""
        steps = [(ref(run.task), step) for run in self.runs.values() for step in run.changed.values()]
        if steps:
            yield store.saving_steps(steps)
        taken = {(ref(run.task), event.position): event for run in self.runs.values() for event in run.delivered}
        # One that came and went within the group is stored once, as it is now.
        fresh = [replace(one, event=taken.pop((one.run, one.event.position), one.event)) for one in self._fresh_events]
        if fresh:
            yield store.inserting_events(fresh)
        if taken:
            yield store.delivering((run, event) for (run, _), event in taken.items())

    # ---- what came of it

    def assigned(self, group: Group) -> Iterable[Assignment]:
        """Runs that workers got as they were created."""
        for birth in self.births.stored.values():
            if birth.lease is not None:
                task = group.inserted[birth.new.key.handler, birth.new.key.instance_id]
                yield Assignment(task, RunInput(Started(birth.new.params, birth.at, birth.new.trace)))

    def events(self, group: Group) -> Iterable[EngineEvent]:
        """What happened to instances."""
        for birth in self.births.stored.values():
            yield created(birth.new.key, group.at.now)
        for run in self.runs.values():
            if run.ending is not None:
                yield ended_event(run, group.at.now)
        for task in group.changed.values():
            if task.handler.kind is TaskKind.WORKFLOW:
                event = enqueued(group.locked[task.id], task, group.at.now)
                if event is not None:
                    yield event

    def images(self, group: Group) -> Iterable[tuple[int, Task | None]]:
        """Runs that are held and wait for nothing."""
        for run in self.runs.values():
            if run.ending is None:
                run.task = group.task(run.task.id) or run.task
                yield run.task.id, run.task if is_image(run) else None
        for assignment in self.assigned(group):
            yield assignment.task.id, assignment.task

    def changes(self, group: Group) -> Changes:
        """What followers of instances are told."""
        moved = changed_statuses(group.locked, group.changed.values())
        ended = {end.id: Head(end.id, end.revision, end.status) for end in _ends(self.runs.values())}
        newborn = {birth.id for birth in self.births.stored.values()}
        claimed = {assignment.task.id for late in group.claims for assignment in late.claimed.assigned}
        return Changes(frozenset(((group.changed.keys() - moved.keys()) | newborn) - claimed), ended)


def _ends(runs: Iterable[Run]) -> list[End]:
    return [end_of(run) for run in runs if run.ending is not None]


def _keep(steps: dict[int, list[Step]], found: Iterable[tuple[int, Step]]) -> None:
    for task_id, step in found:
        steps[task_id].append(step)


def _named(frames: Iterable[Frame]) -> Iterable[str]:
    """The steps that frames are about."""
    for frame in frames:
        if frame.body.step_name is not None:
            yield frame.body.step_name
        yield from (opening.name for opening in frame.opens)


def book_of(group: Group) -> WorkflowBook:
    """The runs of a group."""
    book = group.books[TaskKind.WORKFLOW]
    assert isinstance(book, WorkflowBook)
    return book


def changed_statuses(before: Mapping[int, Task], after: Iterable[Task]) -> dict[int, InstanceStatus]:
    """Statuses of instances whose tasks say something else than before."""
    return {
        task.id: status_of(task)
        for task in after
        if task.handler.kind is TaskKind.WORKFLOW
        and (task.id not in before or status_of(before[task.id]) is not status_of(task))
    }


def end_of(run: Run) -> End:
    """How the instance of a run ends."""
    assert run.ending is not None
    status = InstanceStatus.COMPLETE if run.ending.failure is None else InstanceStatus.ERRORED
    return End(run.task.id, status, run.now, run.task.revision, run.ending.output, run.ending.failure, run.ending.fence)


def ended_event(run: Run, now: Micros) -> EngineEvent:
    """What the end of a run is told as."""
    assert run.ending is not None
    failure = run.ending.failure
    name = WorkflowEvent.COMPLETED if failure is None else WorkflowEvent.ERRORED
    return ended(run.task, name, now, failure)
