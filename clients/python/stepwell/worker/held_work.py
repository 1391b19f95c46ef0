"""Held work of a worker: leases with the work under them, and suspended runs. It is the host of all of it."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

from stepwell.apps import App
from stepwell.clocks import Clock
from stepwell.logs import WARNING, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker import strays
from stepwell.worker.cache import Cache
from stepwell.worker.host import StatefulWork, Work
from stepwell.worker.lease import Lease
from stepwell.worker.leases import Capacity, Leases
from stepwell.worker.loop_turns import Turns
from stepwell.worker.outbox import Outbox
from stepwell.worker.server_terms import Terms
from stepwell.worker.threads import Pool
from stepwell.worker.work import WORKS
from stepwell.workflows.handle import WorkflowCaller

_SECONDS_TO_END = 1.0


class HeldWork:
    """The work of one worker. It knows no network: frames go into its outbox."""

    def __init__(
        self, app: App, client: WorkflowCaller | None, pool: Pool, clock: Clock, capacity: Capacity | None = None
    ) -> None:
        capacity = capacity or Capacity()
        self.client = client
        self.terms = Terms()
        self.clock = clock
        self.turns = Turns()
        self.pool = pool
        self.is_draining = False
        self.quiet = asyncio.Event()  # set when leaving interrupts nothing; kept up to date while draining
        self.leases = Leases(clock, capacity.max_tasks)
        self.outbox = Outbox()
        self._app = app
        self._cache = Cache(capacity.cache, capacity.cache_bytes)
        self._left: WeakSet[asyncio.Task[Any]] = WeakSet()

    # For the work, as its host.

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream: without one, what is sent now is sent again when there is."""
        return self.outbox.is_open

    def send(self, frame: pb.WorkerFrame) -> None:
        """Send a frame with the next message; without a stream it is sent again later."""
        self.outbox.send(frame)

    def let_go(self, work: Work) -> None:
        """The work is no longer held: remember what can go on, and take another task in its place."""
        lease = self.leases.of(work.task_id)
        if lease is not None and lease.work is work:
            self.remove(lease)
        memory = work.remembered_as
        if memory is not None:
            self._cache.keep(memory, work)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Tell a task to end whose outcome is not wanted any more; closing waits for it."""
        task.cancel()
        self._left.add(task)

    def start_over(self, work: StatefulWork) -> None:
        """Drop the work but keep its task, and begin with what the server has."""
        lease = self.leases.of(work.task_id)
        if lease is not None and lease.work is work:
            lease.start_over(work)

    def rested(self) -> None:
        """Some work has come to rest: see whether the worker can leave, if it wants to."""
        if self.is_draining and not self.outbox.is_acking and all(lease.is_quiet for lease in self.leases):
            self.quiet.set()

    # For the leases, as their holder.

    def acknowledge(self, lease: Lease) -> None:
        """Say that the task has arrived."""
        self.outbox.acknowledge(lease)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is held."""
        return self.leases.holds(lease)

    def is_hosted(self, handler: pb.HandlerRef) -> bool:
        """Whether there is a definition for the task's handler."""
        return (handler.kind, handler.name) in self._app.definitions

    def work_for(self, task: pb.Task) -> Work | None:
        """The work of a hosted task. None if all of its state is needed first."""
        kind, name = task.handler.kind, task.handler.name
        remembered = self._cache.take((kind, name, task.key))
        work = WORKS[kind].for_task(self, self._app.definitions[kind, name], task, remembered)
        if remembered is not None and work is not remembered:
            remembered.drop()
        return work

    def remove(self, lease: Lease) -> None:
        """The lease is no longer held."""
        if self.leases.holds(lease):
            self.leases.remove(lease)
            self.outbox.wake()
            self.rested()

    # For the worker.

    def drain(self) -> None:
        """Take no more tasks, begin no more bodies, and set `quiet` when all that executes has ended."""
        self.is_draining = True
        self.turn_away()
        self.rested()

    def turn_away(self) -> None:
        """A worker that leaves does not take what has just come: unacknowledged, it goes back for free."""
        if self.is_draining:
            unbegun = [lease for lease in self.leases if lease.work is None and not lease.is_acked]
            for lease in self.outbox.withdraw(unbegun):
                self.remove(lease)

    def name_bodies(self) -> None:
        """Say which bodies execute, where no frame has said so yet: they take their time, or are about to be left."""
        for lease in self.leases:
            if lease.work is not None:
                lease.work.name_bodies()

    def drop_everything(self) -> None:
        """Stop and forget all that is held and remembered."""
        for lease in self.leases:
            lease.drop()
        self._cache.clear()

    async def close(self) -> None:
        """Drop everything, and see the functions end. A function that does not end must not keep the process alive."""
        self.drop_everything()
        if asyncio.all_tasks() & set(self._left):
            await asyncio.wait(asyncio.all_tasks() & set(self._left), timeout=_SECONDS_TO_END)
        stubborn = strays.throw_away(self._left)
        if stubborn:
            log(WARNING, "functions_do_not_end count=%d: they catch their cancellation", stubborn)
