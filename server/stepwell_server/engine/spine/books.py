"""Books and groups: what one transaction knows, and what its calls put into it.

A group is the world as one transaction sees it: the locked tasks, the time, and what is to be written. Of each kind it
has a book: the rows beside the tasks that its calls need, read once, and what the calls make of them, written once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.frames import Frame
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import NewTask, Task
from stepwell_server.domain.spine.work import Rules, Work
from stepwell_server.domain.values.asked import RequestKey
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.engine.spine.assignments import Ask, Assignment, Claimed
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Statement, Write
from stepwell_server.storage.spine.fates import Fate, Kept
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
    def numbers(self) -> int:
        """How many new numbers it needs."""
        return 0

    def foresee(self, book: Book) -> None:
        """Note in a book what may be read in the same round trip that locks the tasks."""

    @property
    def creates(self) -> TaskKey | None:
        """The task that it creates, if it creates one."""
        return None

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return _SMALL

    leaves_images: ClassVar[bool] = False
    """It changes nothing that an image of its task says."""

    def express(self, images: Mapping[int, Task]) -> TaskKind | None:
        """The kind that may decide it by these images of held tasks. None: it is decided under the lock."""
        return None

    @property
    def weight(self) -> int:
        """How many items it brings."""
        return 1

    @property
    def request(self) -> RequestKey | None:
        """Its request, if its reply is stored: then it is decided once, and a repetition is answered with that."""
        return None

    def dump(self, answer: Any) -> Any:
        """Make the stored reply of an answer, as JSON. None: it accepted nothing, so a repetition is decided anew."""
        raise NotImplementedError

    def load(self, reply: Any) -> Any:
        """The answer to a repetition."""
        raise NotImplementedError

    def want(self, group: Group) -> None:
        """Note in the books what must be read, now that the tasks are locked."""

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

    ask: Ask
    by_call: bool
    claimed: Claimed = field(default_factory=Claimed)


@dataclass(slots=True)
class Group:
    """The world as one transaction sees it: locked tasks, the time, and what is to be written."""

    rules: Rules
    at: Stamp
    locked: dict[int, Task]
    elsewhere: frozenset[int | TaskKey]
    """Tasks that exist and that another transaction has locked."""
    books: Mapping[TaskKind, Book]
    by_key: dict[TaskKey, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: iter(()))
    """New ones, as many as the calls need, in their order."""
    kept: Mapping[TaskKind, Kept] = field(default_factory=dict)
    """Rows of ended tasks, of the kinds that keep them."""
    changed: dict[int, Task] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    fresh: dict[TaskKey, NewTask] = field(default_factory=dict)
    inserted: dict[TaskKey, Task] = field(default_factory=dict)
    fates: dict[int, Fate] = field(default_factory=dict)
    """What became of tasks: by a call of this group, or before it, as far as a call wants to know."""
    fates_wanted: set[int] = field(default_factory=set)
    told: list[Task] = field(default_factory=list)
    """Tasks that the listener of engine events made."""
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

    def draw(self) -> int:
        """One of the new numbers."""
        return next(self.numbers)

    def open(self, task: Task) -> Work:
        """What a locked task advances, as the calls before this one left it."""
        return self.books[task.handler.kind].open(task)

    def put(self, task: Task) -> None:
        """Change a task."""
        self.changed[task.id] = task

    def remove(self, task: Task) -> None:
        """Delete a task."""
        self.removed.add(task.id)
        self.changed.pop(task.id, None)

    def settle(self, work: Work, before: Task) -> None:
        """Keep what became of the task of a piece of work."""
        if work.ending is not None:
            handler = work.task.handler
            if handler.kind in self.kept:  # as in a later group, which would find no fate of any other
                self.fates[work.task.id] = Fate(handler.kind, handler.namespace, True, work.ending.fence)
            self.remove(work.task)
        elif work.task != before:
            self.put(work.task)

    def schedule(self, new: NewTask) -> None:
        """Add a task, unless its (handler, key) has one."""
        self.fresh.setdefault((new.handler, new.key), new)

    def claim_later(self, ask: Ask, *, by_call: bool) -> LateClaim:
        """Claim once the group is written."""
        late = LateClaim(ask, by_call)
        self.claims.append(late)
        return late


class Book:
    """What one transaction knows of the tasks of a kind."""

    def locking(self, calls: Sequence[HotCall], *, waiting: bool) -> Iterable[Statement[Any]]:
        """What locks rows other than tasks, before the time is taken; each statement keeps what it finds."""
        return ()

    def foresee(self, task_id: int, frames: Sequence[Frame]) -> None:
        """Note that frames about this task come, which is not locked yet and may be of any kind."""

    def ahead(self) -> Iterable[Statement[Any]]:
        """What is read of that, each statement keeping what it reads, in the round trip that locks the tasks."""
        return ()

    def want(self, task: Task, frames: Sequence[Frame], *, again: bool) -> None:
        """Note that frames about this task will be applied; `again`: tell the worker all that it may have missed."""

    def read(self, tx: Tx, group: Group) -> None:
        """Read what was noted and not read ahead, in a few statements."""

    def open(self, task: Task) -> Work:
        """The work of a locked task, as the calls before this one left it."""
        raise NotImplementedError

    def superseded(self, held: Held) -> StepwellError:
        """The refusal of a report whose task has ended, or began again."""
        return held.lost()

    def bear(self, tx: Tx, group: Group) -> None:
        """Write what the calls create, as far as it is not there yet, and schedule its tasks."""

    def writes(self, group: Group) -> Iterable[Write]:
        """What became of the rows beside the tasks. The group writes the tasks."""
        return ()

    def assigned(self, group: Group) -> Iterable[Assignment]:
        """What was leased as it was created."""
        return ()

    def events(self, group: Group) -> Iterable[EngineEvent]:
        """What happened, for the listener."""
        return ()

    def images(self, group: Group) -> Iterable[tuple[int, Task | None]]:
        """Tasks of which nothing else need be known, as they are now. None: more must be known of that one."""
        return ()

    def changes(self, group: Group) -> object:
        """What the kind wants to publish of the transaction (`Kind.publish`)."""
        return None
