"""The bodies of a run's steps: when they may begin, and what is reported of their ends."""

from __future__ import annotations

from typing import Any

from stepwell import payloads
from stepwell.errors import PayloadInvalid, StepMaxAttemptsExceeded, StepResultInvalid
from stepwell.handlers import Outcome
from stepwell.logs import WARNING, log
from stepwell.request_ids import RequestIds
from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.function import WorkflowFunction
from stepwell.worker.host import Host, Phase
from stepwell.worker.outgoing import Reports
from stepwell.worker.standing import Standing
from stepwell.worker.step_calls import CallState, OpenCalls, StepCall
from stepwell.worker.step_records import StepRecords, completed


class Bodies:
    """Begins the bodies of one run, and reports how they ended."""

    __slots__ = ("_begun", "_calls", "_function", "_host", "_records", "_reports", "_standing", "_unannounced")

    def __init__(
        self,
        host: Host,
        standing: Standing,
        function: WorkflowFunction,
        reports: Reports,
        records: StepRecords,
        calls: OpenCalls,
    ) -> None:
        self._host = host
        self._standing = standing
        self._function = function
        self._reports = reports
        self._records = records
        self._calls = calls
        self._unannounced: list[StepCall] = []
        self._begun: list[StepCall] = []  # without a limit of time yet

    def ask(self, call: StepCall) -> None:
        """Let the body begin: at once if nothing has been said under this lease yet, else when it is announced."""
        interruptions = self._standing.interruptions
        call.attempt = self._records.attempts(call.name) + 1 + interruptions
        if interruptions and call.attempt > (most := call.max_attempts(self._host.terms)):
            # Of these executions the server does not know whose they were. All others it counts itself, by the
            # policy that was stored with the step, whatever the code says by now.
            call.attempt = int(most)
            self.failed(call, StepMaxAttemptsExceeded())
        elif self._may_begin() and self._is_fresh():
            self._standing.steps_left -= 1
            self._begin(call)
            self._unannounced.append(call)
        else:
            self._calls.ask(call)

    def take_asked(self) -> list[StepCall]:
        """The calls whose bodies are to be announced now."""
        if not self._calls.asked or not self._may_begin():
            return []
        taken = self._calls.take_asked(self._standing.steps_left)
        self._standing.steps_left -= len(taken)
        return taken

    def begin_announced(self, call: StepCall) -> None:
        """The announcement is durable: begin the body, unless the run is to stop."""
        if call.state is not CallState.OPENING or not self._calls.holds(call):
            return  # withdrawn or timed out meanwhile, or the function has ended
        if self._standing.is_stopped:
            self._standing.steps_left += 1
            self._calls.ask(call)
        else:
            self._begin(call)

    def ended(self, call: StepCall, outcome: Outcome) -> pb.StepState | None:
        """Report how a body ended. The step's record if that is its end; otherwise the server decides."""
        call.execution = None
        if outcome.error is not None:
            self.failed(call, outcome.error)
            return None
        return self._returned(call, outcome.value)

    def failed(self, call: StepCall, error: BaseException) -> None:
        """Report that an execution failed. The server decides whether the body is tried again."""
        self._standing.interruptions = 0
        self._reports.add(call.failed(error), error)
        self._calls.move(call, CallState.VERDICT)
        about = {**self._function.about, "step": call.name, "attempt": call.attempt}
        log(WARNING, "step_failed", about=about, error=error)

    def limit(self) -> None:
        """Begin to count the time of bodies. Most have ended by the time the run rests, and need no timer."""
        begun, self._begun = self._begun, []
        for call in begun:
            call.limit(self._host.terms)

    @property
    def are_unannounced(self) -> bool:
        """Whether bodies execute that were named in no frame yet."""
        return any(call.state is CallState.EXECUTING for call in self._unannounced)

    def take_unannounced(self) -> list[StepCall]:
        """The calls whose bodies execute and were named in no frame yet: they are named now."""
        unannounced, self._unannounced = self._unannounced, []
        return [call for call in unannounced if call.state is CallState.EXECUTING]

    def _may_begin(self) -> bool:
        is_allowed = not (self._standing.is_stopped or self._host.is_draining or self._standing.steps_left < 1)
        return is_allowed and self._standing.phase is Phase.HELD

    def _is_fresh(self) -> bool:
        """Whether bodies may begin unannounced. Their loss is told to the next holder as an interruption.

        Not without a stream: the server does not know that they began, and another worker may have the lease by then.
        """
        is_first = self._reports.number == 0 and not self._reports.has_news
        return is_first and self._host.is_connected and not self._host.terms.virtual_clock

    def _begin(self, call: StepCall) -> None:
        self._calls.move(call, CallState.EXECUTING)
        call.execute(RequestIds(*self._function.identity, call.name), self._host)
        self._begun.append(call)

    def _returned(self, call: StepCall, value: Any) -> pb.StepState | None:
        try:
            result = payloads.to_payload(value, self._host.terms.limits)
        except PayloadInvalid as error:
            invalid = StepResultInvalid(f"the step {call.name!r} returned what cannot be stored: {error}")
            self.failed(call, invalid)
            return None
        self._standing.interruptions = 0
        self._reports.add(call.succeeded(result))
        return completed(call.name, call.attempt, result)
