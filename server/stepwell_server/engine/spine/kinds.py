"""Kinds: what a primitive brings to the spine. The spine knows tasks, and of each kind just what stands here.

`Kind` is the primitive itself, one object per replica.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from stepwell_server.domain.spine.definitions import Definition
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.assignments import Assignment, Input, Leased
from stepwell_server.engine.spine.books import Book, Group, HotCall
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine.fates import Kept
from stepwell_server.storage.spine.names import History
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Committed:
    """The changes of a transaction, for all parts that wait for something."""

    handlers: frozenset[Handler]
    """Those whose tasks it touched."""
    at: Stamp
    due: Mapping[Handler, Micros] = field(default_factory=dict)
    """When tasks that were made pending are due, the earliest of each handler."""
    leases_end: Mapping[Handler, Micros] = field(default_factory=dict)
    """When leases that were given or changed end, the earliest of each handler."""
    slots_freed: frozenset[Handler] = frozenset()
    """Handlers of which something is no longer held: another task may take its place."""
    wakes: tuple[HandlerWake, ...] = ()
    """Wakes of handlers, read after all else was written: by claims that got less than they could take."""
    mark: int = 0
    """The mark of the wake bus before that could be read."""
    must_look: frozenset[int] = frozenset()
    """Tasks whose holders must look: something came, or they are to stop, or no longer hold it."""
    tasks: Mapping[TaskKind, frozenset[int]] = field(default_factory=dict)
    """Tasks that were written or removed, by kind."""
    changes: Mapping[TaskKind, object] = field(default_factory=dict)
    """The changes that the book of each kind publishes."""
    redefined: frozenset[Handler] = frozenset()
    """Handlers that have another definition now."""
    assigned: tuple[Assignment, ...] = ()
    """Everything that it leased to workers with a stream."""
    images: Mapping[int, Task | None] = field(default_factory=dict)
    """Held tasks as they are now, if nothing else need be known of them; None: more must be known."""
    began: float = 0.0
    """When its transaction began, by the loop's clock: its leases are no older."""


class Kind:
    """A primitive with handlers. A kind overrides the methods that it needs."""

    kind: TaskKind
    express: Express | None = None
    """How it writes what is known without reading it. None: it cannot."""
    defaults: ClassVar[Mapping[str, Any]]
    """All settings of a definition of this kind, by name, with the values for settings that a worker leaves out."""

    def book(self, rules: Rules) -> Book:
        """A book for one transaction."""
        raise NotImplementedError

    def hand_out(self, tx: Tx, leased: Sequence[Leased], rules: Rules, at: Stamp) -> list[Assignment]:
        """Lease due tasks, and say what their workers must know. A task that ends here is left out."""
        raise NotImplementedError

    def inputs(self, tx: Tx, tasks: Sequence[Task]) -> Mapping[int, Input]:
        """All that workers must know of tasks that they hold."""
        raise NotImplementedError

    def given_up(self, tx: Tx, before: Mapping[int, Task], after: Sequence[Task], at: Stamp) -> None:
        """Copy what changed of tasks whose holders were lost or never had them; `before` may lack some."""

    def check(self, registration: Registration) -> None:
        """Refuse a handler that cannot be."""

    def missing(self, handler: Handler) -> StepwellError:
        """The refusal of a call about a handler that no worker ever registered."""
        raise NotImplementedError

    def history(self) -> History | None:
        """How storage finds what refers to a name besides tasks: then the name is not forgotten."""
        return None

    def kept(self) -> Kept | None:
        """Where storage finds what became of ended tasks. None: nothing is kept of them."""
        return None

    def gives_up_at(self, wakes: Iterable[HandlerWake]) -> Micros | None:
        """When the first due task fails because no worker takes it. None: they wait for ever."""
        return None

    def give_up(self, tx: Tx, wakes: Iterable[HandlerWake], rules: Rules) -> list[Task]:
        """Fail due tasks that waited too long for a worker. Returns those that are tried again."""
        return []

    def next_timer(self, tx: Tx) -> Micros | None:
        """When something of a held task happens by itself, beside the ends of executions."""
        return None

    def publish(self, committed: Committed) -> Collection[int]:
        """Tell those who follow this kind what a transaction of this replica changed.

        Returns the tasks that those who follow it at other replicas want to hear of.
        """
        return ()

    def heard(self, moved: Collection[int] | None) -> None:
        """Tell those who follow this kind that other replicas changed these. None: anything may have changed."""

    def drain(self) -> None:
        """End the waits of those who follow this kind: the replica goes away."""

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The loops that this kind needs as long as the replica runs, by name."""
        return {}


class Express(Protocol):
    """How a kind writes calls that were decided by images of held tasks, without locking and reading them first."""

    def begin(self, group: Group) -> None:
        """Begin a group that reads nothing."""

    def admits(self, group: Group, call: HotCall, answer: Any) -> bool:
        """Whether what a call has put into the group can be written so; nothing of it may be left out."""

    def forget(self, group: Group, call: HotCall) -> None:
        """Take what a call has put out of the group."""

    def write(self, group: Group, calls: Sequence[HotCall]) -> Callable[[Tx], Any]:
        """The function that writes the group: one statement, guarded by the images."""

    def settle(self, group: Group, calls: Sequence[HotCall], written: Any) -> list[bool]:
        """Take over what was written, and say of each call whether it was."""


Listener = Callable[[Tx, Sequence[EngineEvent], Rules, Stamp], list[Task]]
"""Stores what is to be told of engine events, and returns the tasks that it made."""


def no_listener(tx: Tx, events: Sequence[EngineEvent], rules: Rules, at: Stamp) -> list[Task]:
    """Drop engine events."""
    return []


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of a replica, and the listener of their engine events."""

    table: Mapping[TaskKind, Kind]
    listener: Listener = field(default=no_listener)

    @classmethod
    def of(cls, *kinds: Kind, listener: Listener = no_listener) -> Kinds:
        """The table of these kinds."""
        return cls({kind.kind: kind for kind in kinds}, listener)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self.table.values())

    def __getitem__(self, kind: TaskKind) -> Kind:
        return self.table[kind]

    def define(self, hosted: Iterable[Registration]) -> dict[Handler, Definition]:
        """The definitions of what a worker hosts."""
        return {one.handler: Definition.of(one.declared, self.table[one.handler.kind].defaults) for one in hosted}

    def books(self, rules: Rules) -> dict[TaskKind, Book]:
        """A book of each kind, for one transaction."""
        return {name: kind.book(rules) for name, kind in self.table.items()}

    def hand_out(self, tx: Tx, leased: Sequence[Leased], rules: Rules, at: Stamp) -> tuple[Assignment, ...]:
        """Lease due tasks of any kind."""
        return tuple(
            assignment
            for kind, part in _by_kind(leased, lambda one: one.task.handler.kind)
            for assignment in self.table[kind].hand_out(tx, part, rules, at)
        )

    def with_inputs(self, tx: Tx, assignments: Sequence[Assignment]) -> list[Assignment]:
        """The same assignments with all that their workers must know."""
        inputs: dict[int, Input] = {}
        for kind, part in _by_kind(assignments, lambda one: one.task.handler.kind):
            inputs |= self.table[kind].inputs(tx, [assignment.task for assignment in part])
        return [replace(assignment, input=inputs[assignment.task.id]) for assignment in assignments]

    def given_up(self, tx: Tx, before: Mapping[int, Task], after: Sequence[Task], at: Stamp) -> None:
        """Copy what changed of tasks whose holders were lost or never had them."""
        for kind, part in _by_kind(after, lambda task: task.handler.kind):
            self.table[kind].given_up(tx, before, part, at)

    def history(self) -> dict[TaskKind, History]:
        """How storage finds what refers to names of each kind besides tasks."""
        found = {name: kind.history() for name, kind in self.table.items()}
        return {name: history for name, history in found.items() if history is not None}

    def kept(self) -> dict[TaskKind, Kept]:
        """Where storage finds what became of ended tasks of each kind."""
        found = {name: kind.kept() for name, kind in self.table.items()}
        return {name: kept for name, kept in found.items() if kept is not None}

    def gives_up_at(self, wakes: Sequence[HandlerWake]) -> Micros | None:
        """When the first due task of any kind fails because no worker takes it."""
        times = [kind.gives_up_at(wakes) for kind in self]
        return min((at for at in times if at is not None), default=None)

    def give_up(self, tx: Tx, wakes: Sequence[HandlerWake], rules: Rules) -> list[Task]:
        """Fail due tasks of any kind that waited too long for a worker."""
        return [task for kind in self for task in kind.give_up(tx, wakes, rules)]

    def next_timer(self, tx: Tx) -> Micros | None:
        """When something of a held task of any kind happens by itself."""
        times = [kind.next_timer(tx) for kind in self]
        return min((at for at in times if at is not None), default=None)

    def publish(self, committed: Committed) -> set[int]:
        """Tell those who follow any kind what a transaction changed. Returns the tasks to tell other replicas of."""
        return {task_id for kind in self for task_id in kind.publish(committed)}

    def heard(self, moved: Collection[int] | None) -> None:
        """Tell those who follow any kind that other replicas changed these."""
        for kind in self:
            kind.heard(moved)

    def drain(self) -> None:
        """End the waits of those who follow any kind."""
        for kind in self:
            kind.drain()

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops that the kinds need as long as the replica runs."""
        return {name: loop for kind in self for name, loop in kind.loops().items()}


def _by_kind(items: Sequence[T], kind_of: Callable[[T], TaskKind]) -> Iterator[tuple[TaskKind, list[T]]]:
    """The items of each kind, in their order."""
    parts: dict[TaskKind, list[T]] = {}
    for item in items:
        parts.setdefault(kind_of(item), []).append(item)
    return iter(parts.items())
