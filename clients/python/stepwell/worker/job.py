"""A job that a worker holds: one execution of its handler, and the one frame that says how it ended.

Like a run, the machine knows no network: it is told what the server says (`acked`, `refused`, `drop`) and hands its
frame to its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import copy_context
from typing import Any, Protocol

from stepwell.errors import JobTimeoutError
from stepwell.handlers import JobCall, Outcome
from stepwell.kinds import Definition, kind_name
from stepwell.logs import WARNING, log
from stepwell.request_ids import RequestIds
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.executions import Execution
from stepwell.worker.host import Host, Work
from stepwell.worker.outgoing import Reports


class JobDefinition(Definition, Protocol):
    """A definition whose handler is called once per execution, and ends with one outcome."""

    def bind(self, task: pb.Task) -> JobCall:
        """One call of the handler, as its task asks for it."""

    def outcome_of(self, error: BaseException | None) -> pb.Outcome:
        """The report about a handler that has ended, with an error or without."""


class Job(Work):
    """One execution of a handler; see the module's docstring."""

    def __init__(self, host: Host, definition: JobDefinition) -> None:
        self.task_id = 0
        self.renewed_at = host.clock.now()
        self._host = host
        self._definition = definition
        self._reports = Reports()
        self._execution = Execution(self._ended, host)
        self._about: Mapping[str, object] = {}
        self._is_over = False

    @classmethod
    def for_task(cls, host: Host, definition: Any, task: pb.Task, remembered: Work | None) -> Job:
        """A new one: no job is remembered."""
        return cls(host, definition)

    @property
    def is_quiet(self) -> bool:
        """Never while it is held: its handler executes, or its report is on its way."""
        return False

    def attach(self, task_id: int, fence: int, task: pb.Task, number: int = 0) -> None:
        """Call the handler, for at most the time that the server gives it. On a virtual clock the server counts it."""
        self.task_id = task_id
        self._reports.restart(task_id, fence, number)
        call = self._definition.bind(task)
        self._about = call.about
        self._execution.start(call.body, RequestIds(call.context.idempotency_key).enter(copy_context()))
        if call.timeout is not None and not self._host.terms.virtual_clock:
            self._execution.limit(call.timeout, JobTimeoutError)

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

    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frame to send again after a reconnect, if the handler has ended."""
        return self._reports.unacked()

    def _ended(self, outcome: Outcome) -> None:
        self._reports.add(pb.WorkerFrame(outcome=self._definition.outcome_of(outcome.error)))
        self._reports.send(self._host.clock.now(), self._host.send)
        if outcome.error is not None:
            log(WARNING, f"{kind_name(self._definition.kind)}_failed", about=self._about, error=outcome.error)

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._host.let_go(self)
