"""Tickets: a primitive of the tests' own, without tables, through which the spine is tested.

A ticket is a task whose worker says by frames what becomes of it: it goes on, is given up until a time, or is done. In
a replica of tickets they take the place of workflows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Body, Frame, FrameAnswer, News
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task, TaskStatus, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.asked import RequestKey
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.assignments import Assignment, Leased
from stepwell_server.engine.spine.books import Book, Group, HotCall, Later
from stepwell_server.engine.spine.kinds import Kind
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.tasks import Stamp


@dataclass(frozen=True, slots=True)
class Advance(Body):
    """The worker goes on, with these executions open."""

    open_steps: str = ""


@dataclass(frozen=True, slots=True)
class Release(Body):
    """The worker gives the ticket up until a time."""

    run_at: Micros
    reason: Reason = Reason.WAKE
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Finish(Body):
    """The ticket is done. If more has come for its key meanwhile, it is due again instead."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a ticket ended."""

    fence: int | None


@dataclass(slots=True)
class Ticket:
    """A ticket as one transaction sees it."""

    task: Task
    now: Micros
    ending: Ended | None = None
    has_parked: bool = False
    is_contradicted: bool = False

    def begin_batch(self, frames: Sequence[Frame]) -> None:
        """Do nothing: each frame stands for itself."""

    def apply(self, frame: Frame, session_id: str) -> FrameAnswer:
        """Take a frame over."""
        before, wakes_again = self.task, self.task.wake_again
        match frame.body:
            case Advance(open_steps):
                self.task = before.advanced(frame.number, open_steps)
            case Release(run_at, reason, priority):
                self.task = before.advanced(frame.number, "").released(self.now, run_at, reason, priority)
            case Finish() if wakes_again:
                self.task = before.advanced(frame.number, "")
                self.task = self.task.released(self.now, self.now, Reason.WAKE, before.priority)
            case Finish():
                self.ending = Ended(before.fence)
        return FrameAnswer(frame.number, Verdict.ACCEPTED, before.stop, self._is_released, None, self.task.revision)

    def repeat(self, frame: Frame) -> FrameAnswer:
        """Answer a frame that was applied before."""
        task = self.task
        return FrameAnswer(frame.number, Verdict.REPEATED, task.stop, self._is_released, None, task.revision)

    @property
    def _is_released(self) -> bool:
        return self.ending is not None or self.task.status is not TaskStatus.PROCESSING

    def news(self, answers: tuple[FrameAnswer, ...], *, again: bool) -> News:
        """Nothing of a ticket happens by itself."""
        return News(answers, self.task.revision)

    def end_overtime(self) -> bool:
        """No execution of a ticket takes too long."""
        return self.task.wake_again


@dataclass(frozen=True, slots=True)
class TicketInput:
    """A worker must know nothing of a ticket."""

    size: int = 0

    def after(self, offset: int) -> TicketInput:
        """The same."""
        return self


@dataclass(slots=True)
class TicketBook(Book):
    """The tickets of one group."""

    now: Micros = 0

    def read(self, tx: Tx, group: Group) -> None:
        """Take the time over."""
        self.now = group.at.now

    def open(self, task: Task) -> Ticket:
        """The ticket."""
        return Ticket(task, self.now)


@dataclass
class TicketKind(Kind):
    """Tickets as a kind of the spine."""

    kind = TaskKind.WORKFLOW
    defaults: ClassVar[Mapping[str, Any]] = {"color": "white", "seats": 1}
    charged: set[tuple[int, int, str]] = field(default_factory=set)
    """Executions that were counted because their holder was lost: the task, the fence that is over, and the step."""

    def book(self, rules: Rules) -> TicketBook:
        """A book for one transaction."""
        return TicketBook()

    def hand_out(self, tx: Tx, leased: Sequence[Leased], rules: Rules, at: Stamp) -> list[Assignment]:
        """Lease due tickets, and count what their last holders had open."""
        claimed = []
        for one in leased:
            lost = one.task
            self.charged.update((lost.id, lost.fence, step.name) for step in load_open(lost.open_steps))
            task = lost.claimed(one.owner, one.fence, at.lease_now, rules.times)
            claimed.append(task._replace(revision=task.revision + 1, open_steps="", wake_again=False))
        store.save(tx, claimed)
        return [Assignment(task, TicketInput()) for task in claimed]

    def inputs(self, tx: Tx, tasks: Sequence[Task]) -> Mapping[int, TicketInput]:
        """Nothing."""
        return {task.id: TicketInput() for task in tasks}


# ---- calls


@dataclass(frozen=True, slots=True)
class Schedule(HotCall):
    """Store a task. The answer is the task, or None if its (handler, key) has one already."""

    new: NewTask

    @property
    def entity(self) -> Hashable:
        """The key, which has one task at most."""
        return self.new.handler, self.new.key

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 200 + len(self.new.payload or "")

    def decide(self, group: Group) -> Later | None:
        """Add the task, unless an earlier call of the group made one of that key."""
        key = (self.new.handler, self.new.key)
        if key in group.fresh:
            return None
        group.schedule(self.new)
        return Later(lambda: group.inserted.get(key))


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleMany(HotCall):
    """Store many tasks under one request. The answer has of each its number, or None if its key has a task already."""

    new: tuple[NewTask, ...]
    request: RequestKey | None = None

    @property
    def entity(self) -> Hashable:
        """Itself: its keys are its own."""
        return id(self)

    @property
    def weight(self) -> int:
        """One for each task."""
        return len(self.new)

    def decide(self, group: Group) -> Later:
        """Add the tasks. Those whose keys had tasks before are refused in their places."""
        keys = [(one.handler, one.key) for one in self.new]
        mine = [key not in group.fresh for key in keys]
        for one in self.new:
            group.schedule(one)

        def numbers() -> list[int | None]:
            tasks = [group.inserted.get(key) if is_mine else None for key, is_mine in zip(keys, mine, strict=True)]
            return [None if task is None else task.id for task in tasks]

        return Later(numbers)

    def dump(self, answer: Sequence[int | None]) -> Any:
        """The numbers, if any task was accepted."""
        return answer if any(answer) else None

    def load(self, reply: Any) -> list[int | None]:
        """The same numbers."""
        return list(reply)


@dataclass(frozen=True, slots=True)
class Wake(HotCall):
    """Make a task due at once. The answer says whether there is one."""

    task_id: int
    priority: int
    reason: Reason = Reason.WAKE

    @property
    def entity(self) -> Hashable:
        """The task."""
        return self.task_id

    @property
    def task_ids(self) -> Sequence[int]:
        """The task."""
        return (self.task_id,)

    def decide(self, group: Group) -> bool:
        """Make it due, or remember it while somebody holds it."""
        task = group.task(self.task_id)
        if task is not None:
            group.put(task.woken(group.at.now, self.reason, self.priority))
        return task is not None


# ---- from outside: one task, in a transaction of its own that may wait for the lock


def pause(tx: Tx, task_id: int) -> Task | None:
    """Park a task, or tell its holder to stop. None: there is none."""
    return change(tx, task_id, lambda task, at: task.paused())


def resume(tx: Tx, task_id: int, priority: int) -> Task | None:
    """Make a parked task due, or withdraw a pause. None: there is none."""
    return change(tx, task_id, lambda task, at: task.resumed(at.now, priority))


def seize(tx: Tx, task_id: int) -> Task | None:
    """Take a task from whoever holds it: from now on everything under the old fence is stale. None: there is none."""
    (fence,) = dialect.draw_numbers(tx, 1)
    return change(tx, task_id, lambda task, at: task.seized(fence))


def change(tx: Tx, task_id: int, work: Callable[[Task, Stamp], Task]) -> Task | None:
    """Change a task under its lock. None: there is none."""
    found = store.lock(tx, [task_id], waiting=True)
    if task_id not in found:
        return None
    changed = work(found[task_id], store.stamp(tx))
    store.save(tx, [changed])
    return changed
