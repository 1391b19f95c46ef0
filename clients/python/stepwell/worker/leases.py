"""The leases of a worker: what is held under each, when they were renewed, and the credit that is free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.clocks import Clock
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.lease import Lease

CACHE = 5000
CACHE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a worker takes: tasks at a time, and suspended runs to remember, with bytes of inputs and results."""

    max_tasks: int = 500
    cache: int = CACHE
    cache_bytes: int = CACHE_BYTES


class Leases:
    """The leases that a worker believes to hold, by task."""

    def __init__(self, clock: Clock, max_tasks: int) -> None:
        self._clock = clock
        self._max_tasks = max_tasks
        self._leases: dict[int, Lease] = {}
        self._credit = 0
        self._idle_since = clock.now()
        self._beat = 0
        self._sent: dict[int, tuple[float, list[Lease]]] = {}  # heartbeats without an answer: what each one renewed

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def of(self, task_id: int) -> Lease | None:
        """The lease of a task."""
        return self._leases.get(task_id)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is held."""
        return self._leases.get(lease.task_id) is lease

    def add(self, lease: Lease) -> None:
        """Hold a lease."""
        self._leases[lease.task_id] = lease

    def remove(self, lease: Lease) -> None:
        """Hold a lease no longer, so that the worker can take another task."""
        del self._leases[lease.task_id]
        self._idle_since = self._clock.now()
        self._credit += 1

    def named(self) -> list[pb.HeldTask]:
        """Every lease, for the wire."""
        return [pb.HeldTask(task_id=lease.task_id, fence=lease.fence) for lease in self]

    def idle_for(self) -> float:
        """Seconds for which the worker has been connected and held nothing; 0 if it holds something."""
        return 0.0 if self._leases else self._clock.now() - self._idle_since

    # Credit and renewal, which begin anew with each stream.

    def connecting(self) -> None:
        """There is another stream, which knows of no credit and no heartbeat."""
        self._credit, self._beat, self._sent = 0, 0, {}

    def welcomed(self, max_credit: int) -> None:
        """The server knows what is held: everything else that the worker can take is free."""
        self._credit = max(0, min(self._max_tasks, max_credit) - len(self._leases))
        self._idle_since = self._clock.now()

    def take_credit(self) -> int:
        """How many more tasks the server may send than it was told before."""
        credit, self._credit = self._credit, 0
        return credit

    def beat(self) -> pb.Heartbeat:
        """A heartbeat that renews every lease by its name."""
        self._beat += 1
        self._sent[self._beat] = (self._clock.now(), list(self))
        return pb.Heartbeat(held=self.named(), heartbeat_number=self._beat)

    def confirmed(self, number: int) -> float | None:
        """The server has renewed what a heartbeat named; when that was sent, or None if it was answered before."""
        sent_at = None
        for beat in [beat for beat in self._sent if beat <= number]:
            sent_at, renewed = self._sent.pop(beat)
            for lease in renewed:
                lease.renew(sent_at)
        return sent_at

    def lapsing(self, holds_for: float) -> list[Lease]:
        """The leases whose last renewal is so old that another worker may have them soon."""
        oldest = self._clock.now() - holds_for
        return [lease for lease in self if lease.last_renewal <= oldest]
