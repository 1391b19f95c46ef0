"""Local workers: those that are connected to this replica, what they hold, and what is on its way to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.assignments import Assignment, Capacity
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.wakes import WakeBus


@dataclass(slots=True, eq=False)
class LocalWorker:
    """A worker that is connected to this replica."""

    owner: Owner
    handlers: frozenset[Handler]
    deliver: Callable[[Assignment], None]
    tell: Callable[[Held, News], None]
    credits: int = 0
    lent: int = 0
    """Credits that a claim has on the table."""
    held: dict[int, Held] = field(default_factory=dict)
    timers: dict[int, Micros] = field(default_factory=dict)
    must_repeat: set[int] = field(default_factory=set)
    """Tasks about which an answer was lost: what it said must be said again."""
    births: int = 0
    """Credits that are kept for tasks that are about to be created."""
    has_lost_claim: bool = False
    """The reply to a claim was lost, so this worker may own tasks that it does not know. It gets nothing until they are
    returned."""
    namespace: str = ""
    """Of its session. Empty: it works for the server itself."""
    is_full: bool = False
    """It does not read what it was sent, so it is sent nothing that can wait."""
    resting: set[Handler] = field(default_factory=set)
    """Hosted, and not taken for now."""
    shares: dict[str, int] = field(default_factory=dict)
    """How many tasks more it takes of a namespace, where that is bounded."""

    @property
    def wanted(self) -> frozenset[Handler]:
        """The handlers that it takes tasks of now."""
        full = {namespace for namespace, left in self.shares.items() if left <= 0}
        if not full and not self.resting:
            return self.handlers
        return frozenset(one for one in self.handlers - self.resting if one.namespace not in full)

    @property
    def sender(self) -> Sender:
        """Whose turn it is when something of its leases is committed."""
        return Sender(self.namespace, self.owner.session_id)

    @property
    def takes_more(self) -> bool:
        """Whether it can be given tasks."""
        return self.credits > 0 and not self.has_lost_claim and not self.is_full

    def holds(self, held: Held) -> bool:
        """Whether it holds this task under this lease."""
        return self.held.get(held.task_id) == held

    def lend(self, handlers: frozenset[Handler]) -> Capacity:
        """Put its credits on the table for a claim of these handlers."""
        capacity = Capacity(self.owner, handlers, self.credits, dict(self.shares))
        self.lent += capacity.credits
        self.credits = 0
        return capacity

    def take_back(self, capacity: Capacity, used: int) -> None:
        """Take the credits from the table that a claim did not use."""
        self.lent -= capacity.credits
        self.credits += capacity.credits - used


class LocalWorkers:
    """All workers that are connected to this replica."""

    def __init__(self, bus: WakeBus) -> None:
        self._bus = bus
        self._workers: dict[Owner, LocalWorker] = {}
        self.changed = asyncio.Event()
        """A worker can take more, or something of what it holds has another time."""

    def __iter__(self) -> Iterator[LocalWorker]:
        return iter(self._workers.values())

    def get(self, owner: Owner) -> LocalWorker | None:
        """The worker with this connection. None: it is not here."""
        return self._workers.get(owner)

    def enter(self, worker: LocalWorker) -> None:
        """A worker has connected."""
        self._workers[worker.owner] = worker
        self._bus.workers_changed()

    def leave(self, worker: LocalWorker) -> None:
        """A worker's stream has ended."""
        self._workers.pop(worker.owner, None)
        self._bus.workers_changed()

    def grant(self, worker: LocalWorker, credits: int) -> None:
        """A worker can take more tasks."""
        worker.credits += credits
        self.changed.set()

    def came_back(self, worker: LocalWorker, *, is_lost: bool) -> None:
        """Note that assignments have arrived, or are lost: then the worker's unknown tasks must be returned."""
        worker.has_lost_claim |= is_lost
        if worker.has_lost_claim:
            self.changed.set()

    def able(self) -> list[LocalWorker]:
        """Workers that can be given tasks."""
        return [worker for worker in self if worker.takes_more]

    def wanted(self) -> set[Handler]:
        """Handlers of which tasks are wanted now."""
        return {handler for worker in self.able() for handler in worker.wanted}

    def served(self) -> set[Handler]:
        """Handlers that are hosted."""
        return {handler for worker in self for handler in worker.handlers}
