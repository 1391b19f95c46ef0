"""A job that a worker holds: one execution of its handler, and the one frame that says how it ended.

Like a run, the machine knows no network: it is told what the server says (`acked`, `refused`, `drop`) and hands its
frame to its host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

from stepwell.durations import to_datetime
from stepwell.errors import JobTimeoutError, to_failure
from stepwell.handlers import JobContext, Outcome
from stepwell.hooks.definition import HookDefinition
from stepwell.logs import WARNING, log
from stepwell.request_ids import RequestIds
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.executions import Execution
from stepwell.worker.outgoing import Reports
from stepwell.worker.work import Host


class Job:
    """One execution of a hook; see the module's docstring."""

    def __init__(self, host: Host, definition: HookDefinition[Any], task_id: int, fence: int) -> None:
        self.task_id = task_id
        self.renewed_at = host.clock.now()
        self._host = host
        self._definition = definition
        self._reports = Reports()
        self._reports.restart(task_id, fence, 0)
        self._execution = Execution(self._ended, host)
        self._about: dict[str, Any] = {}
        self._is_over = False

    def begin(self, key: str, task: pb.HookInput) -> None:
        """Call the handler, for at most the time that the server gives it. On a virtual clock the server counts it."""
        context = JobContext(
            id=key,
            name=self._definition.name,
            attempt=task.attempt,
            max_attempts=task.max_attempts or None,
            idempotency_key=task.idempotency_key,
            created_at=to_datetime(task.created_at),
        )
        self._about = {"hook": context.name, "hook_id": context.id, "attempt": context.attempt}
        body = self._definition.handler.bind(task.payload, context)
        self._execution.start(body, RequestIds(context.idempotency_key).enter(copy_context()))
        if task.HasField("timeout") and not self._host.terms.virtual_clock:
            self._execution.limit(task.timeout.ToTimedelta().total_seconds(), JobTimeoutError)

    def acked(self, number: int, ack: pb.Ack) -> None:
        """How it ended is durable: it is over."""
        if self._reports.answered(number) is not None:
            self._leave()

    def refused(self, number: int, reason: str, message: str) -> None:
        """Its one frame was refused: there is nothing else to say, and its lease lapses."""
        if self._reports.answered(number) is not None:
            self._leave()

    def drop(self) -> None:
        """End the execution in this process: stop the handler if it can be stopped, report nothing any more."""
        self._execution.abandon()
        self._reports.forget()
        self._leave()

    @property
    def is_quiet(self) -> bool:
        """Never while it is held: its handler executes, or its report is on its way."""
        return False

    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frame to send again after a reconnect, if the handler has ended."""
        return self._reports.unacked()

    def _ended(self, outcome: Outcome) -> None:
        told = pb.Outcome()
        if outcome.error is not None:
            retryable = self._definition.is_retryable(outcome.error)
            told.failure.CopyFrom(to_failure(outcome.error, non_retryable=not retryable))
        self._reports.add(pb.WorkerFrame(outcome=told))
        self._reports.send(self._host.clock.now(), self._host.send)
        if outcome.error is not None:
            log(WARNING, "hook_failed", about=self._about, error=outcome.error)

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._host.let_go(self)
