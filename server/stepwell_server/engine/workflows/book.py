"""Runs inside a group: what its calls must know of them is read at once, what they change is written at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.leases import Lease, Owner
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.workflows.instances import (
    PRIORITY,
    Event,
    Instance,
    InstanceKey,
    InstanceStatus,
    NewInstance,
    Step,
    status_of,
)
from stepwell_server.domain.workflows.runs import Run, RunRules
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine.tasks import Stamp, TaskKey
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import runs as store
from stepwell_server.storage.workflows.instances import Birth, End, Fate, Found
from stepwell_server.storage.workflows.runs import RunRef, SentEvent, Wanted

if TYPE_CHECKING:
    from stepwell_server.engine.spine.group import Group


@dataclass(slots=True)
class Reads:
    """What the calls of a group must know of runs before they can be decided."""

    names: set[tuple[RunRef, str]] = field(default_factory=set)
    runs: set[RunRef] = field(default_factory=set)
    """Runs whose waits are looked at, and the events that they wait for."""
    untold: set[RunRef] = field(default_factory=set)
    """Runs of which everything is looked at that changed by itself: their workers may not have heard of it."""
    waits_to_come: Counter[tuple[RunRef, str]] = field(default_factory=Counter)
    """Types of events that a call of the group will wait for."""
    fates: set[int] = field(default_factory=set)
    without_task: set[InstanceKey] = field(default_factory=set)
    requests: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class NewRun:
    """An instance to create, what its creator calls the request, and the worker that gets it if it is free."""

    new: NewInstance
    request_id: str | None = None
    request_hash: str | None = None
    seat: Owner | None = None


def ref(task: Task) -> RunRef:
    """The run that a task advances."""
    return RunRef(task.id, task.run_number)


@dataclass(slots=True)
class RunBook:
    """The runs of one group."""

    rules: RunRules
    at: Stamp = field(default_factory=lambda: Stamp(0, 0))
    runs: dict[int, Run] = field(default_factory=dict)
    sent: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    """Events by (namespace, request id): those of earlier requests, and those of this group."""
    fates: dict[int, Fate] = field(default_factory=dict)
    without_task: dict[InstanceKey, Instance] = field(default_factory=dict)
    """Instances whose task was looked for in vain."""
    births: dict[TaskKey, NewRun] = field(default_factory=dict)
    born: list[InstanceKey] = field(default_factory=list)
    """Those of them that were not there yet."""
    found_by_key: dict[InstanceKey, Found] = field(default_factory=dict)
    found_by_request: dict[tuple[str, str | None], Found] = field(default_factory=dict)
    ended: dict[int, Any] = field(default_factory=dict)
    """Rows of the instances that ended here."""
    _steps: dict[int, list[Step]] = field(default_factory=lambda: defaultdict(list))
    _events: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _fresh_events: list[SentEvent] = field(default_factory=list)

    # ---- read

    def read(self, tx: Tx, reads: Reads, tasks: Mapping[int, Task], at: Stamp) -> None:
        """Read what the calls must know, in a few statements, after their tasks are locked."""
        self.at = at
        if reads.names or reads.runs:
            for task_id, step in store.steps_of(tx, reads.names, reads.runs):
                self._steps[task_id].append(step)
        if reads.untold:
            for task_id, step in store.changed_by_themselves(tx, reads.untold):
                self._steps[task_id].append(step)
        wanted = self._wanted_events(reads, tasks)
        if wanted:
            for task_id, event in store.pending_events(tx, wanted):
                self._events[task_id].append(event)
        if reads.fates:
            self.fates |= workflows.fates(tx, reads.fates)
        if reads.without_task:
            self.without_task |= {one.key: one for one in workflows.get_keys(tx, reads.without_task)}
        if reads.requests:
            self.sent |= store.sent_before(tx, reads.requests)

    def _wanted_events(self, reads: Reads, tasks: Mapping[int, Task]) -> list[Wanted]:
        """How many events of each type the waits can take, of runs that have any at all."""
        counts = Counter(reads.waits_to_come)
        for run in reads.runs:
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

    def fate(self, task_id: int, namespace: str | None = None) -> Fate | None:
        """What became of an instance, of that namespace or of any: by an earlier call of the group, or before."""
        run, fate = self.runs.get(task_id), self.fates.get(task_id)
        if run is not None and run.ending is not None:
            fate = Fate(run.task.handler.namespace, _end(run).status, 0, run.ending.fence)
        return fate if fate is not None and namespace in (None, fate.namespace) else None

    # ---- change

    def create(self, new: NewRun) -> None:
        """Create an instance, unless there is one of its key."""
        self.births.setdefault((new.new.key.handler, new.new.key.instance_id), new)

    def note_sent(self, sent: SentEvent) -> None:
        """Store an event that a run received."""
        self._fresh_events.append(sent)
        if sent.request_id is not None:
            self.sent[sent.namespace, sent.request_id] = sent

    # ---- write

    def write(self, tx: Tx, group: Group) -> None:
        """Write what became of the runs. Their tasks are written by the group."""
        self._write_births(tx, group)
        self.write_steps(tx)
        ends = [_end(run) for run in self.runs.values() if run.ending is not None]
        if ends:
            self.ended = workflows.end(tx, ends)
        statuses = changed_statuses(group.locked, group.changed.values())
        if statuses:
            workflows.copy_status(tx, statuses, self.at.now)

    def write_steps(self, tx: Tx) -> None:
        """Write the steps that changed, and the events that came and went."""
        steps = [(ref(run.task), step) for run in self.runs.values() for step in run.changed.values()]
        if steps:
            store.save_steps(tx, steps)
        if self._fresh_events:
            store.insert_events(tx, self._fresh_events)
        taken = [(ref(run.task), event) for run in self.runs.values() for event in run.delivered]
        if taken:
            store.deliver(tx, taken)

    def _write_births(self, tx: Tx, group: Group) -> None:
        if not self.births:
            return
        wanted = list(self.births.values())
        seats = sum(one.seat is not None for one in wanted)
        numbers = dialect.draw_numbers(tx, len(wanted) + seats)
        fences = iter(numbers[len(wanted) :])
        named = list(zip(numbers, wanted, strict=False))
        births = [_birth(number, one, self.at) for number, one in named]
        tasks = {number: self._task_of(number, one, fences) for number, one in named}
        stored = workflows.insert(tx, births)
        self.born = [one.new.key for one in births if one.id in stored]
        for number in stored:
            group.schedule(tasks[number])
        if len(stored) < len(births):
            for found in workflows.find(tx, [one for one in births if one.id not in stored]):
                self.found_by_key[found.instance.key] = found
                if found.request_id is not None:
                    self.found_by_request[found.instance.key.namespace, found.request_id] = found

    def _task_of(self, number: int, one: NewRun, fences: Iterator[int]) -> NewTask:
        key, lease = one.new.key, None
        if one.seat is not None:
            until = self.at.lease_now + self.rules.times.ack_window
            lease = Lease(one.seat, next(fences), until)
        return NewTask(key.handler, key.instance_id, priority=PRIORITY[Reason.RUN], id=number, lease=lease, revision=1)


def changed_statuses(before: Mapping[int, Task], after: Iterable[Task]) -> dict[int, InstanceStatus]:
    """Statuses of instances whose tasks say something else than before."""
    return {
        task.id: status_of(task)
        for task in after
        if task.handler.kind is TaskKind.WORKFLOW
        and (task.id not in before or status_of(before[task.id]) is not status_of(task))
    }


def _birth(number: int, one: NewRun, at: Stamp) -> Birth:
    status = InstanceStatus.QUEUED if one.seat is None else InstanceStatus.RUNNING
    return Birth(number, one.new, status, at.now, one.request_id, one.request_hash)


def _end(run: Run) -> End:
    assert run.ending is not None
    status = InstanceStatus.COMPLETE if run.ending.failure is None else InstanceStatus.ERRORED
    return End(run.task.id, status, run.now, run.task.revision, run.ending.output, run.ending.failure, run.ending.fence)
