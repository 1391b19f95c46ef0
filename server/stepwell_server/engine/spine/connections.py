"""A worker's stream, as the engine sees it: what comes in is committed, what is to go out waits in an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from stepwell_server.domain.spine.frames import Frame, News
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.values.errors import InvalidField, ServerBusy, StepwellError
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import GiveBack, Leave
from stepwell_server.engine.spine.links import Link
from stepwell_server.engine.spine.local_workers import LocalWorker
from stepwell_server.engine.spine.outbox import Draining, Message, Outbox, Refused
from stepwell_server.engine.spine.renewals import Renewals
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.reports import Reports

MOST_CREDIT = 1000

log = structlog.get_logger()


class Connection:
    """One stream of a worker. Frames of one task are committed in the order in which they came, whatever happens."""

    def __init__(
        self,
        replica: Replica,
        owner: Owner,
        namespace: str,
        hosted: frozenset[Handler],
        read_state: Callable[[Held], Awaitable[Assignment]],
    ) -> None:
        outbox = Outbox(replica.registry.limits.outbox_bytes, replica.tuning.part_messages)
        self.owner = owner
        self.worker = LocalWorker(owner, hosted, self._deliver, self._tell, namespace=namespace)
        self._link = Link(owner, self.worker, replica.committer, replica.handout, outbox)
        self._reports = Reports(self._link, read_state)
        self._renewals = Renewals(self._link, self._reports.shorten)
        self.is_draining = False

    @property
    def outbox(self) -> Outbox:
        """The messages that wait to go out."""
        return self._link.outbox

    @property
    def last_beat(self) -> int:
        """Newest heartbeat whose renewals are durable."""
        return self._renewals.last_beat

    # ---- out

    async def take(self) -> list[Message]:
        """Take the next messages, once there are some: those before are written. Raises why the stream must end."""
        self._link.outbox.written()
        if self._link.worker.is_full and not self._link.outbox.is_full:
            self._link.worker.is_full = False
            self._link.handout.workers.grant(self._link.worker, 0)  # there may be something to take now
        await self._link.outbox.ready.wait()
        self._link.outbox.ready.clear()
        if self._link.end is not None:
            raise self._link.end
        return self._link.outbox.take()

    def _deliver(self, assignment: Assignment) -> None:
        self._link.send(assignment)

    def _tell(self, held: Held, news: News) -> None:
        self._link.tell(held, news)

    def stop(self, why: StepwellError) -> None:
        """End the stream with this."""
        self._link.stop(why)

    def drain(self) -> None:
        """Say that the replica goes away. Leases keep their length: the worker carries them to another."""
        self.is_draining = True
        self.worker.credits = 0
        self._link.send(Draining())

    # ---- in

    def grant(self, tasks: int) -> None:
        """More tasks can be sent; what exceeds the most is dropped."""
        if tasks <= 0:
            self._link.send(Refused(InvalidField("credit must be at least 1", field="tasks")))
            return
        worker = self.worker
        room = max(0, MOST_CREDIT - worker.credits - worker.lent - worker.births - len(worker.held))
        if not self.is_draining:
            self._link.handout.workers.grant(worker, min(tasks, room))

    def holds(self, held: Held) -> bool:
        """Whether the worker holds this through the stream."""
        return self._link.holds(held)

    def acknowledge(self, held: Held) -> None:
        """The task has arrived: its lease is a full one in a moment, or with its first frames."""
        self._renewals.acknowledge(held)

    async def heartbeat(self, number: int, held: Iterable[Held]) -> None:
        """Renew these leases, and say when that is durable. A lease that cannot be renewed is lost alone."""
        await self._renewals.heartbeat(number, held)

    async def report(self, held: Held, frames: tuple[Frame, ...]) -> None:
        """Commit frames about one task; the answers go out by themselves."""
        self._renewals.has_frames(held)
        await self._reports.report(held, frames)

    async def need_state(self, held: Held) -> None:
        """Send the worker all of a task that it holds, with everything in it that it has reported before."""
        await self._reports.need_state(held)

    # ---- the end

    async def leave(self) -> None:
        """The worker said goodbye: what it holds goes back at once."""
        leaves = [Leave(held, self.owner) for held in self.worker.held.values()]
        await self._part([*self._arrivals(), *leaves])

    async def lose(self) -> None:
        """The stream broke: what was never sent goes back, all else gets a short grace or is carried elsewhere."""
        unsent = {message.held for message in self.outbox if isinstance(message, Assignment)}
        kept = [] if self.is_draining else [held for held in self.worker.held.values() if held not in unsent]
        calls: list[HotCall] = self._arrivals()
        calls += [GiveBack(held, self.owner) for held in unsent]
        await self._part(calls + [self._link.shortening(held) for held in kept])

    def _arrivals(self) -> list[HotCall]:
        """Acknowledgements that are not stored yet: what had arrived may have begun."""
        return [self._link.renewal(held) for held in self._renewals.arrived()]

    async def _part(self, calls: Sequence[HotCall]) -> None:
        self._link.part()
        answers = []
        for call in calls:
            try:
                answers.append(self._link.committer.enqueue(call, self.worker.sender))
            except ServerBusy:
                log.warning("lease_left_to_lapse", task_id=call.task_ids[0])
        await asyncio.gather(*answers, return_exceptions=True)
