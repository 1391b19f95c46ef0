"""A group: many hot calls decided one after the other in memory, and written by a few statements in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepwell_server.domain.errors import StepwellError
from stepwell_server.domain.leases import LeaseTimes, Owner
from stepwell_server.domain.tasks import Handler, NewTask, Task
from stepwell_server.storage import handlers
from stepwell_server.storage import tasks as store
from stepwell_server.storage.database import Tx
from stepwell_server.storage.tasks import Served, Stamp


class HotCall(Protocol):
    """A call that happens thousands of times a second. It is a value: it may be decided again after a rollback."""

    @property
    def entity(self) -> Hashable:
        """What it is about. Calls about one entity are decided in the order in which they came."""

    @property
    def task_ids(self) -> Sequence[int]:
        """The tasks it must have locked."""

    @property
    def size(self) -> int:
        """About how many bytes it brings."""

    def decide(self, group: Group) -> Any:
        """Put what shall change into the group, and return the answer, or `Later` if only the writing will tell.

        A refusal is raised before anything is put: it is the call's own and changes nothing.
        """


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not an answer: another transaction had the call's task locked, so it must be tried again."""


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is known once the group is written."""

    answer: Callable[[], Any]


@dataclass(slots=True)
class LateClaim:
    """A claim that is made after the group is written, and then the tasks that it got."""

    served: Sequence[Served]
    owner: Owner
    tasks: list[Task] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """The world as one transaction sees it: locked tasks, the time, and what is to be written."""

    at: Stamp
    locked: dict[int, Task]
    elsewhere: frozenset[int]
    """Tasks that exist and that somebody else has locked."""
    changed: dict[int, Task] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    fresh: dict[tuple[Handler, str], NewTask] = field(default_factory=dict)
    inserted: dict[tuple[Handler, str], Task] = field(default_factory=dict)
    claims: list[LateClaim] = field(default_factory=list)

    def task(self, task_id: int) -> Task | None:
        """The task as the calls before this one left it. None: there is none."""
        if task_id in self.removed:
            return None
        return self.changed.get(task_id) or self.locked.get(task_id)

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

    def claim_later(self, served: Sequence[Served], owner: Owner) -> LateClaim:
        """Claim for the owner once the group is written."""
        claim = LateClaim(served, owner)
        self.claims.append(claim)
        return claim

    def touched(self) -> set[Handler]:
        """Handlers whose next wake may have changed."""
        tasks = [*self.changed.values(), *(self.locked[one] for one in self.removed), *self.inserted.values()]
        claimed = [task for claim in self.claims for task in claim.tasks]
        return {task.handler for task in (*tasks, *claimed)}


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group: an answer, a refusal or `Undecided` per call, and whom it touched."""

    answers: list[Any]
    touched: frozenset[Handler]
    at: Stamp


def run_group(tx: Tx, calls: Sequence[HotCall], times: LeaseTimes, *, waiting: bool) -> GroupResult:
    """Lock, stamp, decide every call, write, claim. Each phase is a statement or two, however many calls there are."""
    group = _open(tx, calls, waiting=waiting)
    decided = _decide(group, calls)
    _write(tx, group, times)
    answers = [one.answer() if isinstance(one, Later) else one for one in decided]
    return GroupResult(answers, frozenset(group.touched()), group.at)


def _open(tx: Tx, calls: Sequence[HotCall], *, waiting: bool) -> Group:
    ids = {task_id for call in calls for task_id in call.task_ids}
    locked = store.lock(tx, ids, waiting=waiting) if ids else {}
    missing = ids - locked.keys()
    elsewhere = store.existing(tx, missing) if missing and not waiting else set()
    return Group(store.stamp(tx), locked, frozenset(elsewhere))


def _decide(group: Group, calls: Sequence[HotCall]) -> list[Any]:
    """An answer, a refusal or `Undecided` per call."""
    answers: list[Any] = []
    stuck: set[Hashable] = set()
    for call in calls:
        if call.entity in stuck or not group.elsewhere.isdisjoint(call.task_ids):
            stuck.add(call.entity)
            answers.append(Undecided())
            continue
        try:
            answers.append(call.decide(group))
        except StepwellError as refusal:
            answers.append(refusal)
    return answers


def _write(tx: Tx, group: Group, times: LeaseTimes) -> None:
    if group.changed:
        store.save(tx, group.changed.values())
    if group.removed:
        store.remove(tx, group.removed)
    if group.fresh:
        handlers.note(tx, _handlers(group.fresh.values()))
        group.inserted = store.insert(tx, list(group.fresh.values()), group.at)
    for claim in group.claims:
        claim.tasks = store.claim(tx, claim.served, claim.owner, times)


def _handlers(new: Iterable[NewTask]) -> set[Handler]:
    return {one.handler for one in new}
