"""Deliveries: what a commit leased, on its way to the workers of this replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.values.errors import DatabaseSlow, StepwellError
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.calls import Answer, GiveBack
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.holders import Holders
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.local_workers import LocalWorkers
from stepwell_server.storage.database.database import TxOptions

INPUTS_AT_ONCE = 50
"""Tasks whose inputs are read together."""

_READ_INPUTS = TxOptions(label="read-inputs", read_only=True, reserved=True)

log = structlog.get_logger()


class Deliveries:
    """One per replica. Each task that a transaction leased, by a claim or at its birth, comes here once."""

    def __init__(self, committer: Committer, workers: LocalWorkers, holders: Holders) -> None:
        self._committer = committer
        self._workers = workers
        self._holders = holders
        self._late: dict[Held, asyncio.Task[None]] = {}
        """Tasks that are leased, and delivered when their input is read."""
        self._reading = asyncio.Lock()

    def deliver(self, committed: Committed) -> None:
        """Give what a commit leased to its workers: at once, or when what they must know is read."""
        unread = [one for one in committed.assigned if one.input is None]
        for assignment in committed.assigned:
            if assignment.input is not None:
                self._hand(assignment, committed.began)
        if unread:
            reading = asyncio.create_task(self._deliver_late(unread, committed.began))
            for assignment in unread:
                self._late[assignment.held] = reading

    async def delivered(self, given: Iterable[Held]) -> None:
        """Wait until all of it is delivered that can be."""
        late = {self._late[held] for held in given if held in self._late}
        if late:
            await asyncio.wait(late)

    async def _deliver_late(self, unread: Sequence[Assignment], began: float) -> None:
        try:
            for first in range(0, len(unread), INPUTS_AT_ONCE):
                await self._deliver_part(unread[first : first + INPUTS_AT_ONCE], began)
        finally:
            for assignment in unread:
                del self._late[assignment.held]

    async def _deliver_part(self, unread: Sequence[Assignment], began: float) -> None:
        """Read the inputs of these tasks, and deliver those that can be read in time."""
        ready: Sequence[Assignment] = unread
        try:
            ready = await self._with_inputs(unread)
        except DatabaseSlow as error:
            if len(unread) > 1:
                middle = len(unread) // 2
                await self._deliver_part(unread[:middle], began)
                return await self._deliver_part(unread[middle:], began)
            log.warning("input_not_read", task_id=unread[0].task.id, reason=error.reason)
        except Exception as error:  # whatever it was: the tasks go back
            log.warning("input_not_read", error=repr(error))
        for assignment in ready:
            self._hand(assignment, began)

    async def _with_inputs(self, unread: Sequence[Assignment]) -> list[Assignment]:
        """Read the input of tasks, which does not change while they are leased.

        One transaction after the other: connections are few, and groups need them more."""
        kinds = self._committer.kinds
        async with self._reading:
            return await self._committer.db.run_tx(lambda tx: kinds.with_inputs(tx, unread), _READ_INPUTS)

    def _hand(self, assignment: Assignment, began: float) -> None:
        """Give a task to its worker, if that is there and reads, its input is known, and the lease is young.

        Else the task goes back. Its lease covers the ack window, from the begin of its transaction. If this replica or
        the commit was frozen since then, another worker may have the task by now.
        """
        worker = self._workers.get(assignment.holder)
        if worker is None or worker.is_full or assignment.input is None or self._is_too_late(began):
            self.give_back(assignment)
            if worker is not None:
                self._workers.grant(worker, 1)
            return
        self._holders.hold(worker, assignment.held)
        self._holders.set_timer(worker, assignment.held, assignment.next_timer)
        worker.deliver(assignment)

    def _is_too_late(self, began: float) -> bool:
        """Whether so much of the ack window has passed that the rest may not do for the worker's acknowledgement."""
        waited = asyncio.get_running_loop().time() - began
        return waited * SECOND > self._committer.rules.times.ack_window / 2

    def give_back(self, assignment: Assignment) -> asyncio.Future[Answer] | None:
        """It never reached its worker: as if it had not been claimed. None: the end of the ack window must do it."""
        sender = Sender(assignment.task.handler.namespace, assignment.holder.session_id)
        try:
            answer = self._committer.enqueue(GiveBack(assignment.held, assignment.holder), sender)
        except StepwellError as error:
            log.warning("give_back_failed", reason=error.reason)
            return None
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer
