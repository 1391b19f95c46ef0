"""A group: many hot calls decided one after the other in memory, and written by a few statements in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import Job
from stepwell_server.domain.spine.tasks import NewTask, Stop, Task, TaskStatus
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.runs import Run, RunRules
from stepwell_server.engine.hooks.book import JobBook
from stepwell_server.engine.spine.claims import Claimed, Seat, claim
from stepwell_server.engine.spine.timings import Measured, Stage
from stepwell_server.engine.workflows.book import Reads, RunBook, changed_statuses
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.hooks import hooks
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.handlers import HandlerWake
from stepwell_server.storage.spine.tasks import Stamp, TaskKey

_SMALL = 200


class HotCall:
    """A call that happens thousands of times a second. It is a value: it may be decided again after a rollback."""

    __slots__ = ()

    @property
    def entity(self) -> Hashable:
        """What it is about. Calls of one sender about one entity are decided in the order in which they came."""
        raise NotImplementedError

    @property
    def task_ids(self) -> Sequence[int]:
        """The tasks it must have locked."""
        return ()

    @property
    def task_keys(self) -> Sequence[TaskKey]:
        """The tasks it must have locked and knows only by their keys; those that exist."""
        return ()

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return _SMALL

    def note_reads(self, reads: Reads, group: Group) -> None:
        """Say what must be read of runs, now that the tasks are locked."""

    def decide(self, group: Group) -> Any:
        """Put what shall change into the group, and return the answer, or `Later` if only the writing will tell.

        A refusal is raised before anything is put: it is the call's own and changes nothing.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not an answer: another transaction had the call's task locked, so it must be tried again."""


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is known once the group is written."""

    answer: Callable[[], Any]


@dataclass(slots=True)
class LateClaim:
    """A claim that is made after the group is written, and then what it got."""

    seats: Sequence[Seat]
    patience: Micros
    most: int | None
    claimed: Claimed = field(default_factory=Claimed)


@dataclass(slots=True)
class Group:
    """The world as one transaction sees it: locked tasks, the time, and what is to be written."""

    at: Stamp
    locked: dict[int, Task]
    elsewhere: frozenset[int | TaskKey]
    """Tasks that exist and that somebody else has locked."""
    runs: RunBook
    jobs: JobBook
    by_key: dict[TaskKey, int] = field(default_factory=dict)
    changed: dict[int, Task] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    fresh: dict[TaskKey, NewTask] = field(default_factory=dict)
    inserted: dict[TaskKey, Task] = field(default_factory=dict)
    claims: list[LateClaim] = field(default_factory=list)

    def task(self, task_id: int) -> Task | None:
        """The task as the calls before this one left it. None: there is none."""
        if task_id in self.removed:
            return None
        return self.changed.get(task_id) or self.locked.get(task_id)

    def task_of(self, key: TaskKey) -> Task | None:
        """The task of a key that was locked, as the calls before this one left it. None: there is none."""
        task_id = self.by_key.get(key)
        return None if task_id is None else self.task(task_id)

    def open(self, task: Task) -> Run | Job:
        """What a locked task advances, as the calls before this one left it."""
        return self.runs.open(task) if task.handler.kind is TaskKind.WORKFLOW else self.jobs.open(task)

    def put(self, task: Task) -> None:
        """Change a task."""
        self.changed[task.id] = task

    def remove(self, task: Task) -> None:
        """Delete a task."""
        self.removed.add(task.id)
        self.changed.pop(task.id, None)

    def schedule(self, new: NewTask) -> None:
        """Add a task, unless its (handler, key) has one."""
        self.fresh.setdefault((new.handler, new.key), new)

    def claim_later(self, seats: Sequence[Seat], patience: Micros, most: int | None) -> LateClaim:
        """Claim for these seats once the group is written."""
        late = LateClaim(seats, patience, most)
        self.claims.append(late)
        return late


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction changed, for everybody who waits for something."""

    touched: frozenset[Handler]
    at: Stamp
    due: Mapping[Handler, Micros] = field(default_factory=dict)
    """When tasks that were made pending are due, the earliest of each handler."""
    lapses: Mapping[Handler, Micros] = field(default_factory=dict)
    """When leases that were given or changed end, the earliest of each handler."""
    freed: frozenset[Handler] = frozenset()
    """Handlers of which something is no longer held: another task may take its place."""
    wakes: tuple[HandlerWake, ...] = ()
    """What was read about handlers after all else was written: by claims that got less than they could take."""
    mark: int = 0
    """What was noted on the wake bus before that could be read."""
    runs: frozenset[int] = frozenset()
    """Instances that changed, or whose steps or events did."""
    statuses: frozenset[int] = frozenset()
    """Those of them that stand somewhere else now."""
    told: frozenset[int] = frozenset()
    """Tasks whose holders must look: something came, or they are to stop, or no longer hold it."""
    ended: Mapping[int, Any] = field(default_factory=dict)
    """Rows of instances that ended, for `storage.workflows.from_row`."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group: an answer, a refusal or `Undecided` per call, and what it changed."""

    answers: list[Any]
    committed: Committed
    measured: Measured


def run_group(tx: Tx, calls: Sequence[HotCall], rules: RunRules, *, waiting: bool) -> GroupResult:
    """Lock, stamp, read, decide every call, write, claim: a few statements each, however many calls there are."""
    measured = Measured()
    group = _open(tx, calls, rules, waiting=waiting)
    measured.end(Stage.LOCK)
    _read(tx, group, calls)
    measured.end(Stage.READ)
    decided = _decide(group, calls)
    measured.end(Stage.DECIDE)
    _write(tx, group)
    measured.end(Stage.WRITE)
    measured.born = [task for task in group.inserted.values() if task.owner is not None]
    if group.claims:
        for late in group.claims:
            late.claimed = claim(tx, late.seats, rules, late.patience, late.most)
        measured.end(Stage.CLAIM)
        measured.claimed = [one.task for late in group.claims for one in late.claimed.handed]
    answers = [one.answer() if isinstance(one, Later) else one for one in decided]
    return GroupResult(answers, _committed(group), measured)


def _open(tx: Tx, calls: Sequence[HotCall], rules: RunRules, *, waiting: bool) -> Group:
    ids = {task_id for call in calls for task_id in call.task_ids}
    keys = {key for call in calls for key in call.task_keys}
    locked = store.lock(tx, ids, waiting=waiting) if ids else {}
    by_key = {(task.handler, task.key): task for task in store.lock_keys(tx, keys, waiting=waiting)} if keys else {}
    locked |= {task.id: task for task in by_key.values()}
    elsewhere: set[int | TaskKey] = set()
    if not waiting:
        missing, unseen = ids - locked.keys(), keys - by_key.keys()
        elsewhere |= store.existing(tx, missing) if missing else set()
        elsewhere |= store.existing_keys(tx, unseen) if unseen else set()
    at = store.stamp(tx)
    return Group(
        at,
        locked,
        frozenset(elsewhere),
        RunBook(rules),
        JobBook(rules, at),
        {key: task.id for key, task in by_key.items()},
    )


def _read(tx: Tx, group: Group, calls: Sequence[HotCall]) -> None:
    reads = Reads()
    for call in calls:
        if not _is_stuck(call, group):
            call.note_reads(reads, group)
    group.runs.read(tx, reads, group.locked, group.at)
    if reads.fates:
        group.jobs.ended_fences |= hooks.ended_fences(tx, reads.fates)


def _decide(group: Group, calls: Sequence[HotCall]) -> list[Any]:
    """An answer, a refusal or `Undecided` per call."""
    answers: list[Any] = []
    stuck: set[Hashable] = set()
    for call in calls:
        if call.entity in stuck or _is_stuck(call, group):
            stuck.add(call.entity)
            answers.append(Undecided())
            continue
        try:
            answers.append(call.decide(group))
        except StepwellError as refusal:
            answers.append(refusal)
    return answers


def _is_stuck(call: HotCall, group: Group) -> bool:
    if not group.elsewhere:
        return False
    return not group.elsewhere.isdisjoint(call.task_ids) or not group.elsewhere.isdisjoint(call.task_keys)


def _write(tx: Tx, group: Group) -> None:
    group.runs.write(tx, group)
    group.jobs.write(tx, group)
    if group.changed:
        store.save(tx, group.changed.values())
    if group.removed:
        store.remove(tx, group.removed)
    if group.fresh:
        unknown = {one.handler for one in group.fresh.values() if one.handler.kind is not TaskKind.WORKFLOW}
        if unknown:  # workflows were registered before anything could be created for them
            handlers.note(tx, unknown)
        group.inserted = store.insert(tx, list(group.fresh.values()), group.at)


def _committed(group: Group) -> Committed:
    gone = [group.locked[one] for one in group.removed]
    claimed = [one.task for late in group.claims for one in late.claimed.handed]
    written = [*group.changed.values(), *group.inserted.values(), *claimed]
    told = {task.id for task in group.changed.values() if _must_look(task)}
    wakes = tuple(wake for late in group.claims for wake in late.claimed.wakes)
    committed = committed_by(written, gone, group.at, told, wakes)
    moved = changed_statuses(group.locked, group.changed.values())
    unmoved = group.changed.keys() - moved.keys()
    return replace(committed, freed=_freed(group), statuses=committed.runs - unmoved, ended=group.runs.ended)


def _freed(group: Group) -> frozenset[Handler]:
    """Handlers of tasks that were held before the group and are not after it."""
    after = ((before, group.task(before.id)) for before in group.locked.values())
    return frozenset(
        before.handler
        for before, task in after
        if before.status is TaskStatus.PROCESSING and (task is None or task.status is not TaskStatus.PROCESSING)
    )


def committed_by(
    written: Sequence[Task],
    others: Sequence[Task],
    at: Stamp,
    told: Iterable[int] = (),
    wakes: tuple[HandlerWake, ...] = (),
) -> Committed:
    """What a transaction changed that wrote these tasks, and removed the others."""
    everything = [*written, *others]
    runs = frozenset(task.id for task in everything if task.handler.kind is TaskKind.WORKFLOW)
    return Committed(
        frozenset(task.handler for task in everything),
        at,
        due=_earliest((task.handler, task.run_at) for task in written if task.status is TaskStatus.PENDING),
        freed=frozenset(task.handler for task in others if task.status is TaskStatus.PROCESSING),
        lapses=_earliest((task.handler, task.locked_until) for task in written if task.locked_until is not None),
        wakes=wakes,
        runs=runs,
        statuses=runs,
        told=frozenset(told),
    )


def _earliest(times: Iterable[tuple[Handler, Micros]]) -> dict[Handler, Micros]:
    """The first of these times of each handler."""
    first: dict[Handler, Micros] = {}
    for handler, at in times:
        first[handler] = min(at, first.get(handler, at))
    return first


def _must_look(task: Task) -> bool:
    """Whether the holder of a task must be told: something came for it, or it is to stop."""
    return task.status is TaskStatus.PROCESSING and (task.wake_again or task.stop is not Stop.NONE)
