"""The steps of a run: what is known of them, and those that its function waits for."""

from __future__ import annotations

import asyncio

from stepwell.handlers import Outcome
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.worker import step_records as records
from stepwell.worker.bodies import Bodies
from stepwell.worker.function import WorkflowFunction
from stepwell.worker.host import Host
from stepwell.worker.outgoing import Report, Reports
from stepwell.worker.standing import Standing
from stepwell.worker.step_calls import CallState, OpenCalls, StepCall
from stepwell.worker.step_records import StepRecords


class OpenSteps:
    """The steps of one run, changed by what the server says and by what their bodies do."""

    __slots__ = ("bodies", "calls", "records")

    def __init__(self, host: Host, standing: Standing, function: WorkflowFunction, reports: Reports) -> None:
        self.records = StepRecords()
        self.calls = OpenCalls()
        self.bodies = Bodies(host, standing, function, reports, self.records, self.calls)

    def apply(self, state: pb.StepState, error: BaseException | None = None) -> None:
        """Take over what is known of a step, and let the function see it."""
        self.records.put(state)
        call = self.calls.get(state.name)
        if call is None:
            return
        if records.is_finished(state):
            self.calls.close(call)
            call.settle(state, error)
        elif state.attempts >= call.attempt:  # else it is older than the execution that is under way
            self.calls.stop(call)
            if call.body is not None and state.status == states.STEP_STATUS_PENDING:
                self.bodies.ask(call)

    def ask_again(self) -> None:
        """Ask once more for the bodies that have not begun: there is a new lease."""
        asked, self.calls.asked = self.calls.asked, []
        for call in asked:
            self.bodies.ask(call)

    def judge(self, report: Report, ack: pb.Ack) -> None:
        """The server has decided on a failed execution: tried again later, or raised to the function."""
        told = report.frame.step_failed
        known = self.records.get(told.name)
        if known is not None and known.attempts >= told.attempt and known.status != states.STEP_STATUS_WAITING:
            return  # Resolved was quicker: the retry is due by now, or there is none
        if ack.HasField("wake_at"):
            self.apply(records.unfinished(told.name, states.STEP_TYPE_DO, told.attempt))
        else:
            self.apply(records.errored(told.name, told.attempt, told.failure), report.error)

    def ended(self, call: StepCall, outcome: Outcome) -> None:
        """An execution of a body has ended."""
        state = self.bodies.ended(call, outcome)
        if state is not None:
            self.apply(state)

    def withdraw(self, call: StepCall) -> None:
        """The function no longer waits for the step. An execution that had begun counts as failed."""
        call.abandon()
        if call.has_begun:
            self.bodies.failed(call, asyncio.CancelledError("cancelled by the workflow"))
        if call.state is CallState.VERDICT:
            self.records.put(records.unfinished(call.name, call.type, call.attempt))
        self.calls.close(call)
