"""A run that a worker holds: the workflow function, its open steps, and the frames about them.

The machine knows no network. It is told what the server says (`attach`, `acked`, `resolved`, `refused`, `cancel_step`,
`drop`) and hands frames to its host. Its one promise is "durable before the next effect": a body begins only when every
result that the function could have seen when it asked for the body is acknowledged, while the function itself goes on
at once. So frames are held back until the function has come to rest: a result and what it leads to (the next body, a
wait, the end) travel together.

    Run ── Standing    where it stands with the server
     ├──── OpenSteps   what is known of its steps, those that are open, and their bodies
     ├──── Sender      what it says when it rests
     └──── Reports     what it has said, until that is acknowledged
    RunEngine          what the function asks for

The parts know nothing of the run, so that one which is over goes at once, without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.handlers import Outcome
from stepwell.logs import WARNING, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.common_pb2 import Failure
from stepwell.worker.function import WorkflowFunction, finish_of
from stepwell.worker.host import Host, Memory, Phase, StatefulWork, Work
from stepwell.worker.open_steps import OpenSteps
from stepwell.worker.outgoing import Report, Reports
from stepwell.worker.sending import Sender
from stepwell.worker.standing import Standing
from stepwell.worker.step_engine import RunEngine
from stepwell.workflows.definition import WorkflowDefinition
from stepwell.workflows.steps import WorkflowStep

# Turns of the loop without news after which the function counts as at rest. A result needs three to come through
# gather() or a TaskGroup, and two more for each one around it. Too few cost a message, never correctness.
_TURNS_TO_REST = 5


class Run(StatefulWork):
    """One run of an instance; see the module's docstring."""

    def __init__(self, host: Host, definition: WorkflowDefinition[Any, Any], key: str) -> None:
        self.task_id = 0
        self.run_number = 0
        self.renewed_at = 0.0
        self._host = host
        self._function = WorkflowFunction(definition, host.client, key)
        self._standing = Standing()
        self._reports = Reports()
        self._steps = OpenSteps(host, self._standing, self._function, self._reports)
        self._sender = Sender(host, self._standing, self._steps, self._reports)
        self._rests_at = 0
        self._is_resting = True

    @classmethod
    def for_task(cls, host: Host, definition: Any, task: pb.Task, remembered: Work | None) -> Run | None:
        """The run that is in memory, if it is the one that the task leaves out; or one that begins from the top."""
        if not task.workflow.cached:
            return cls(host, definition, task.key)
        if not isinstance(remembered, Run) or remembered.run_number != task.workflow.run_number:
            return None
        return remembered if remembered._standing.revision == task.workflow.known_revision else None

    @property
    def phase(self) -> Phase:
        """Where the run stands between the worker and the server."""
        return self._standing.phase

    @property
    def remembered_as(self) -> Memory | None:
        """Workflow and instance of a run that is suspended, and about the bytes of its input and its results."""
        if self.phase is not Phase.RELEASED:
            return None
        function = self._function
        key = function.definition.kind, function.definition.name, function.key
        return Memory(key, function.input_bytes + self._steps.records.bytes)

    @property
    def is_quiet(self) -> bool:
        """Whether a worker that leaves would interrupt nothing: no body executes, no report is on its way."""
        if self._reports.has_news or not self._reports.all_acked or not self._is_resting:
            return False
        return not any(call.has_begun for call in self._steps.calls)

    def attach(self, task_id: int, fence: int, task: pb.Task, number: int = 0) -> None:
        """Hold the task from now on, with what is new in it; begin the function if it has not begun.

        `number` is that of the last frame that was sent under this fence, by a run that had to start over.
        """
        given = task.workflow
        self.task_id = task_id
        self.renewed_at = self._host.clock.now()
        self._standing.leased(given)
        self._reports.restart(task_id, fence, number)
        for state in given.steps:
            self._steps.apply(state)
        self._steps.ask_again()
        if not self._function.has_begun:
            self.run_number = given.run_number
            engine = RunEngine(self._host, self._standing, self._function, self._reports, self._steps, self._touch)
            self._function.begin(given, WorkflowStep(engine), self._function_ended)
        self._touch()

    def acked(self, number: int, ack: pb.Ack) -> None:
        """A frame is durable: go on with what waited for that, unless the run is to stop."""
        report = self._reports.answered(number)
        if report is None or self._standing.is_dropped:
            return
        self.renewed_at = max(self.renewed_at, report.sent_at)
        self._standing.revision = ack.revision or self._standing.revision
        self._standing.is_stopped = ack.stop > pb.STOP_NONE
        if ack.stop == pb.STOP_CANCEL or (self._standing.is_stopped and ack.released):
            self.drop()
            return
        if report.error is not None:
            self._steps.judge(report, ack)
        for call in report.begins or ():
            self._steps.bodies.begin_announced(call)
        self._follow_phase(report, ack)
        self._touch()

    def resolved(self, resolved: pb.Resolved) -> None:
        """Steps have changed at the server while the run is held."""
        if self._standing.is_dropped:
            return
        self._standing.revision = self._standing.heard_revision = resolved.revision or self._standing.revision
        self._standing.expects_news = False
        if any(self._steps.records.contradicts(state) for state in resolved.steps):
            self._host.start_over(self)
            return
        for state in resolved.steps:
            if self._steps.records.is_news(state):
                self._steps.apply(state)
                self._standing.was_told = True
        self._touch()

    def refused(self, number: int, reason: str, message: str) -> None:
        """A frame was refused although the SDK had checked it: the run ends with that as its failure.

        Later work of the function has no ground; executing it again would only lead to the same refusal.
        """
        report = self._reports.answered(number)
        if report is None or self._standing.is_dropped:
            return
        if report.frame.HasField("suspend") and self._standing.was_told:
            self._standing.phase = Phase.HELD  # what it was to wait for had come already, and crossed the frame
            self._touch()
            return
        if report.frame.finish.HasField("failure"):
            self.drop()  # there is nothing left to say
            return
        has_failed = self._standing.has_failed
        if has_failed and self.phase is Phase.FINISHING:
            return
        self._standing.phase = Phase.HELD
        self._reports.defuse()
        if has_failed:  # the first refusal says why, those that follow from it do not
            self._touch()
        else:
            self._end(pb.Finish(failure=Failure(name=reason, message=message)))

    def cancel_step(self, name: str) -> None:
        """The server has timed out the body that executes: stop it, and wait for what the server decides."""
        call = self._steps.calls.get(name)
        if call is not None and not self._standing.is_dropped:
            self._steps.calls.stop(call)
            self._standing.expects_news = True
            self._touch()

    def name_bodies(self) -> None:
        """Say which bodies execute, if no frame has said so yet. After Goodbye, others count as never started."""
        self._sender.name_bodies()

    def ask_again(self) -> None:
        """Ask again for bodies that a pause holds up: the server does not tell that it was withdrawn."""
        if self._sender.may_ask_again():
            self._standing.is_stopped = False  # until the answer
            self._touch()

    def drop(self) -> None:
        """End the run in this process: cancel the function and its bodies, report nothing any more."""
        if self._standing.is_dropped:
            return
        was_held = self.phase is not Phase.RELEASED
        self._standing.phase = Phase.DROPPED
        self._reports.forget()
        self._function.leave(self._host, self._steps.calls.clear())
        if was_held:
            self._host.let_go(self)

    def hand_over(self) -> Reports:
        """End the run in this process, and return its frames: they are to be answered, and set nothing off."""
        reports = self._reports.handed_over()
        self.drop()
        return reports

    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frames to send again after a reconnect, in order."""
        return self._reports.unacked()

    def _function_ended(self, outcome: Outcome) -> None:
        if self._standing.is_over:
            return
        finish = finish_of(outcome, self._host.terms.limits)
        if finish.HasField("failure"):
            self._end(finish)
            log(WARNING, "workflow_failed", about=self._function.about, error=outcome.error)
        else:
            self._standing.finish = finish
            self._touch()

    def _end(self, finish: pb.Finish) -> None:
        """The run is over, whatever still executes."""
        self._standing.finish = finish
        self._function.leave(self._host, self._steps.calls.clear())
        self._touch()

    def _touch(self) -> None:
        """Something has happened: send what there is to say as soon as the function has come to rest."""
        turns = 1 if self._standing.finish is not None else _TURNS_TO_REST
        self._rests_at = self._host.turns.now + turns
        if self._is_resting:
            self._is_resting = False
            self._host.turns.after(turns, self._look)

    def _look(self) -> None:
        left = self._rests_at - self._host.turns.now
        if left > 0:
            self._host.turns.after(left, self._look)
            return
        self._is_resting = True
        self._steps.bodies.limit()
        if self.phase is Phase.HELD:
            self._sender.flush()
        self._host.rested()

    def _follow_phase(self, report: Report, ack: pb.Ack) -> None:
        if not report.frame.HasField("suspend"):
            if ack.released:
                self.drop()
            return
        self._standing.expects_news = not ack.released and not self._standing.was_told
        if not ack.released:
            self._standing.phase = Phase.HELD
        elif report.frame.suspend.cached:
            self._standing.phase = Phase.RELEASED
            self._host.let_go(self)
        else:
            self.drop()
