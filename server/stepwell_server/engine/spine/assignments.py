"""Assignments: tasks on their way to workers, and what workers can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.spine.claims import Served
from stepwell_server.storage.spine.wakes import HandlerWake


class Input(Protocol):
    """The input of a task for its worker, besides the task itself. The api knows how each type is written."""

    @property
    def size(self) -> int:
        """About how many bytes it is."""

    def after(self, offset: int) -> Input:
        """The same without its first parts, so many, which the worker has."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task that was leased to a worker, and what the worker must know."""

    task: Task
    input: Input | None
    """None: it is read once the lease is committed (`Kind.inputs`)."""
    next_timer: Micros | None = None
    """When something of it happens by itself."""
    max_steps: int = 0
    """Steps after which the worker is to give it up. 0: as many as it takes."""

    @property
    def held(self) -> Held:
        """The lease."""
        return Held(self.task.id, self.task.fence)

    @property
    def holder(self) -> Owner:
        """The worker that has the lease."""
        assert self.task.owner is not None
        return self.task.owner

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return 200 + (0 if self.input is None else self.input.size)


@dataclass(frozen=True, slots=True)
class Leased:
    """A due task on its way to a worker, under a fence that was drawn for it."""

    task: Task
    owner: Owner
    fence: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The handlers of a connected worker, and how many tasks it can take."""

    owner: Owner
    handlers: frozenset[Handler]
    credits: int
    shares: Mapping[str, int] = field(default_factory=dict)
    """How many of them may be of a namespace, where that is bounded."""

    def share(self, namespace: str) -> int:
        """How many tasks of this namespace it can take."""
        return min(self.credits, self.shares.get(namespace, self.credits))


@dataclass(frozen=True, slots=True)
class Claimed:
    """The tasks of a claim, and when the handlers that gave less than was asked for are due next."""

    assigned: tuple[Assignment, ...] = ()
    wakes: tuple[HandlerWake, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """The wishes of a claim: tasks for these workers."""

    capacities: Sequence[Capacity]
    patience: Micros = 0
    """How long others' cached runs are left to them."""
    most: int | None = None
    """None: as many as the workers can take."""
    max_steps: int = 0
    """Steps after which a worker is to give a task up. 0: as many as it takes."""

    @property
    def room(self) -> int:
        """How many tasks it takes."""
        room = sum(capacity.credits for capacity in self.capacities)
        return room if self.most is None else min(room, self.most)

    def served(self) -> list[Served]:
        """How many tasks of each handler it takes."""
        credits: Counter[Handler] = Counter()
        for capacity in self.capacities:
            for handler in capacity.handlers:
                credits[handler] += capacity.share(handler.namespace)
        return [Served(handler, count) for handler, count in credits.items() if count > 0]
