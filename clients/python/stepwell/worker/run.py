"""A run that a worker holds: the workflow function, its open steps, and the frames about them.

The machine knows no network. It is told what the server says (`attach`, `acked`, `resolved`, `refused`, `cancel_step`,
`drop`) and hands frames to its host. Its one promise is "durable before the next effect": a body begins only when every
result that the function could have seen when it asked for the body is acknowledged, while the function itself goes on
at once. So frames are held back until the function has come to rest: a result and what it leads to (the next body, a
wait, the end) travel together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

from stepwell import payloads
from stepwell.errors import DuplicateStepKey, PayloadInvalid, StepMaxAttemptsExceeded, StepResultInvalid
from stepwell.handlers import Body, Outcome
from stepwell.logs import WARNING, log
from stepwell.request_ids import RequestIds
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.v1.common_pb2 import Failure
from stepwell.worker import step_records as records
from stepwell.worker.function import WorkflowFunction, finish_of
from stepwell.worker.outgoing import Report, Reports
from stepwell.worker.step_calls import CallState, StepCall
from stepwell.worker.step_records import StepRecords
from stepwell.worker.work import Host, Phase
from stepwell.workflows.definition import WorkflowDefinition
from stepwell.workflows.handle import WorkflowCaller
from stepwell.workflows.steps import StepOptions, Timers, WorkflowStep

# Turns of the loop without news after which the function counts as at rest. A result needs three to come through
# gather() or a TaskGroup, and two more for each one around it. Too few cost a message, never correctness.
_TURNS_TO_REST = 5


class Run:
    """One run of an instance; see the module's docstring."""

    def __init__(
        self, host: Host, definition: WorkflowDefinition[Any, Any], client: WorkflowCaller | None, key: str
    ) -> None:
        self.task_id = 0
        self.fence = 0
        self.run_number = 0
        self.revision = 0
        self.renewed_at = 0.0
        self.phase = Phase.HELD
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._function = WorkflowFunction(definition, client, key)
        self._finish: pb.Finish | None = None
        self._records = StepRecords()
        self._reports = Reports()
        self._calls: dict[str, StepCall] = {}
        self._busy = 0  # calls that do not wait for the server
        self._asked: list[StepCall] = []
        self._unannounced: list[StepCall] = []
        self._begun: list[StepCall] = []  # without a limit of time yet
        self._interruptions = 0
        self._steps_left = math.inf  # that may begin under this lease
        self._is_stopped = False
        self._expects_news = False
        self._was_told = False  # of something new, since the last Suspend
        self._heard_revision = 0  # up to which the run knows what the server resolved; an Ack says nothing of that
        self._rests_at = 0
        self._is_resting = True

    # What the server says.

    def attach(self, task_id: int, fence: int, task: pb.WorkflowInput, number: int = 0) -> None:
        """Hold the task from now on, with what is new in it; begin the function if it has not begun.

        `number` is that of the last frame that was sent under this fence, by a run that had to start over.
        """
        self.task_id, self.fence = task_id, fence
        self.revision = self._heard_revision = task.revision
        self.renewed_at = self._host.clock.now()
        self.phase, self._is_stopped, self._expects_news = Phase.HELD, False, False
        self._reports.restart(task_id, fence, number)
        self._interruptions = task.interruptions
        self._steps_left = task.max_steps or math.inf
        for state in task.steps:
            self._apply(state)
        asked, self._asked = self._asked, []
        for call in asked:
            self._ask(call)
        if not self._function.has_begun:
            self.run_number = task.run_number
            self._function.begin(task, WorkflowStep(self), self._function_ended)
        self._touch()

    def acked(self, number: int, ack: pb.Ack) -> None:
        """A frame is durable: go on with what waited for that, unless the run is to stop."""
        report = self._reports.answered(number)
        if report is None or self.phase is Phase.DROPPED:
            return
        self.renewed_at = max(self.renewed_at, report.sent_at)
        self.revision = ack.revision or self.revision
        self._is_stopped = ack.stop > pb.STOP_NONE
        if ack.stop == pb.STOP_CANCEL or (self._is_stopped and ack.released):
            self.drop()
            return
        if report.error is not None:
            self._judge(report, ack)
        for call in report.begins or ():
            self._begin_announced(call)
        self._follow_phase(report, ack)
        self._touch()

    def resolved(self, resolved: pb.Resolved) -> None:
        """Steps have changed at the server while the run is held."""
        if self.phase is Phase.DROPPED:
            return
        self.revision = self._heard_revision = resolved.revision or self.revision
        self._expects_news = False
        if any(self._records.contradicts(state) for state in resolved.steps):
            self._host.start_over(self)
            return
        for state in resolved.steps:
            if self._records.is_news(state):
                self._apply(state)
                self._was_told = True
        self._touch()

    def refused(self, number: int, reason: str, message: str) -> None:
        """A frame was refused although the SDK had checked it: the run ends with that as its failure.

        What the function did since has no ground; executing it again would only lead to the same refusal.
        """
        report = self._reports.answered(number)
        if report is None or self.phase is Phase.DROPPED:
            return
        if report.frame.HasField("suspend") and self._was_told:
            self.phase = Phase.HELD  # what it was to wait for had come already, and crossed the frame on its way
            self._touch()
            return
        if report.frame.finish.HasField("failure"):
            self.drop()  # there is nothing left to say
            return
        has_failed = self._finish is not None and self._finish.HasField("failure")
        if has_failed and self.phase is Phase.FINISHING:
            return
        self.phase = Phase.HELD
        self._reports.defuse()
        if has_failed:  # the first refusal says why, those that follow from it do not
            self._touch()
        else:
            self._end(pb.Finish(failure=Failure(name=reason, message=message)))

    def cancel_step(self, name: str) -> None:
        """The server has timed out the body that executes: stop it, and wait for what the server decides."""
        call = self._calls.get(name)
        if call is not None and self.phase is not Phase.DROPPED:
            self._stop_body(call)
            self._expects_news = True
            self._touch()

    def name_bodies(self) -> None:
        """Say which bodies execute, if no frame has said so yet. To a server that is left, all others never began."""
        if self.phase is Phase.HELD and any(call.state is CallState.EXECUTING for call in self._unannounced):
            if not self._reports.has_news:
                self._reports.add(pb.WorkerFrame(begin_steps=pb.BeginSteps()))
            self._send([])

    def ask_again(self) -> None:
        """Ask again for bodies that a pause holds up: should it be withdrawn, nobody says so by himself."""
        is_held_up = self.phase is Phase.HELD and self._is_stopped and self._asked and self._is_answered()
        if is_held_up and not self._host.is_draining:
            self._is_stopped = False  # until the answer
            self._touch()

    def drop(self) -> None:
        """End the run in this process: cancel the function and its bodies, report nothing any more."""
        if self.phase is Phase.DROPPED:
            return
        was_held = self.phase is not Phase.RELEASED
        self.phase = Phase.DROPPED
        self._reports.forget()
        self._cancel_function()
        if was_held:
            self._host.let_go(self)

    def hand_over(self) -> Reports:
        """End the run in this process, and return its frames: they are to be answered, and set nothing off."""
        reports, self._reports = self._reports, Reports()
        reports.defuse()
        self.drop()
        return reports

    # What the worker asks.

    @property
    def name(self) -> tuple[str, str]:
        """Workflow and instance."""
        return self._function.definition.name, self._function.key

    @property
    def is_quiet(self) -> bool:
        """Whether a worker that leaves would interrupt nothing: no body executes, no report is on its way."""
        if self._reports.has_news or not self._reports.all_acked or not self._is_resting:
            return False
        return not any(call.has_begun for call in self._calls.values())

    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frames to send again after a reconnect, in order."""
        return self._reports.unacked()

    # What the workflow function asks, through its WorkflowStep.

    @property
    def timers(self) -> Timers:
        """How far ahead the server lets a step wait."""
        return self._host.terms.timers(self._host.clock.now())

    async def do(self, name: str, body: Body, options: StepOptions) -> pb.StepState:
        """Execute a body unless its result is known already."""
        known = await self._recall(name, states.STEP_TYPE_DO)
        if known is not None and records.is_finished(known):
            return records.result_of(known)
        call = StepCall(name, states.STEP_TYPE_DO, self._loop.create_future())
        call.body, call.context = body, copy_context()
        call.options, call.policy = options, options.to_policy()
        self._calls[name] = call
        if known is None or known.status == states.STEP_STATUS_PENDING:
            self._ask(call)
        elif self._reports.is_undecided(name):
            call.attempt = known.attempts
            self._move(call, CallState.VERDICT)
        return await self._answer(call)

    async def wait(self, wait: pb.Wait) -> pb.StepState:
        """Wait, unless that is over already."""
        type = records.type_of(wait)
        known = await self._recall(wait.name, type)
        if known is not None and records.is_finished(known):
            return records.result_of(known)
        call = StepCall(wait.name, type, self._loop.create_future())
        self._calls[wait.name] = call
        if known is None:
            self._records.put(records.unfinished(wait.name, type, 0))
            self._reports.add(pb.WorkerFrame(wait=wait))
            self._steps_left -= 1
        return await self._answer(call)

    async def _recall(self, name: str, type: states.StepType.ValueType) -> pb.StepState | None:
        if self.phase is Phase.DROPPED or self._finish is not None:
            await self._function.park()
        if name in self._calls:
            raise DuplicateStepKey(f"the step {name!r} is open already")
        return self._records.recall(name, type, self._host.terms.max_steps)

    async def _answer(self, call: StepCall) -> pb.StepState:
        self._expects_news = False
        self._touch()
        try:
            return await call.future
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    def _withdraw(self, call: StepCall) -> None:
        """The function no longer waits for the step. An execution that had begun counts as failed."""
        if self._calls.get(call.name) is not call:
            return
        call.abandon()
        if call.has_begun:
            self._report_failure(call, asyncio.CancelledError("cancelled by the workflow"))
        if call.state is CallState.VERDICT:
            self._records.put(records.unfinished(call.name, call.type, call.attempt))
        elif call.state is CallState.ASKED:
            self._asked.remove(call)
        self._close(call)
        self._touch()

    # Bodies.

    def _ask(self, call: StepCall) -> None:
        """Let the body begin: at once if nothing has been said under this lease yet, else when it is announced."""
        call.attempt = self._records.attempts(call.name) + 1 + self._interruptions
        if self._interruptions and call.attempt > (most := call.max_attempts(self._host.terms)):
            # Of these executions the server does not know whose they were. All others it counts itself, by the
            # policy that was stored with the step, whatever the code says by now.
            call.attempt = int(most)
            self._report_failure(call, StepMaxAttemptsExceeded())
        elif self._may_begin() and self._is_fresh():
            self._steps_left -= 1
            self._begin(call)
            self._unannounced.append(call)
        else:
            self._move(call, CallState.ASKED)
            self._asked.append(call)

    def _may_begin(self) -> bool:
        return self.phase is Phase.HELD and not (self._is_stopped or self._host.is_draining or self._steps_left < 1)

    def _is_fresh(self) -> bool:
        """Whether bodies may begin unannounced. Their loss is told to the next holder as an interruption.

        Not without a stream: nobody knows that they began, and the lease may be another's when there is one again.
        """
        is_first = self._reports.number == 0 and not self._reports.has_news
        return is_first and self._host.is_connected and not self._host.terms.virtual_clock

    def _begin_announced(self, call: StepCall) -> None:
        if call.state is not CallState.OPENING or self._calls.get(call.name) is not call:
            return  # withdrawn or timed out meanwhile, or the function has ended
        if self._is_stopped:
            self._steps_left += 1
            self._move(call, CallState.ASKED)
            self._asked.append(call)
        else:
            self._begin(call)

    def _begin(self, call: StepCall) -> None:
        self._move(call, CallState.EXECUTING)
        call.execute(self._body_ended, RequestIds(*self._function.identity, call.name), self._host)
        self._begun.append(call)

    def _body_ended(self, call: StepCall, outcome: Outcome) -> None:
        call.execution = None
        if outcome.error is not None:
            self._report_failure(call, outcome.error)
        else:
            self._report_result(call, outcome.value)
        self._touch()

    def _report_result(self, call: StepCall, value: Any) -> None:
        try:
            result = payloads.to_payload(value, self._host.terms.limits)
        except PayloadInvalid as error:
            invalid = StepResultInvalid(f"the step {call.name!r} returned what cannot be stored: {error}")
            self._report_failure(call, invalid)
            return
        self._interruptions = 0
        self._reports.add(call.succeeded(result))
        self._apply(records.completed(call.name, call.attempt, result))

    def _report_failure(self, call: StepCall, error: BaseException) -> None:
        self._interruptions = 0
        self._reports.add(call.failed(error), error)
        self._move(call, CallState.VERDICT)
        about = {**self._function.about, "step": call.name, "attempt": call.attempt}
        log(WARNING, "step_failed", about=about, error=error)

    def _judge(self, report: Report, ack: pb.Ack) -> None:
        """The server has decided on a failed execution: tried again later, or raised to the function."""
        told = report.frame.step_failed
        known = self._records.get(told.name)
        if known is not None and known.attempts >= told.attempt and known.status != states.STEP_STATUS_WAITING:
            return  # Resolved was quicker: the retry is due by now, or there is none
        if ack.HasField("wake_at"):
            self._apply(records.unfinished(told.name, states.STEP_TYPE_DO, told.attempt))
        else:
            self._apply(records.errored(told.name, told.attempt, told.failure), report.error)

    def _apply(self, state: pb.StepState, error: BaseException | None = None) -> None:
        """Take over what is known of a step, and let the function see it."""
        self._records.put(state)
        call = self._calls.get(state.name)
        if call is None:
            return
        if records.is_finished(state):
            call.abandon()
            self._close(call)
            call.settle(state, error)
        elif state.attempts >= call.attempt:  # else it is older than the execution that is under way
            self._stop_body(call)
            if call.body is not None and state.status == states.STEP_STATUS_PENDING:
                self._ask(call)

    def _stop_body(self, call: StepCall) -> None:
        call.abandon()
        if call.state is CallState.ASKED:
            self._asked.remove(call)
        self._move(call, CallState.WAITING)

    def _move(self, call: StepCall, state: CallState) -> None:
        self._busy += (state is not CallState.WAITING) - (call.state is not CallState.WAITING)
        call.state = state

    def _close(self, call: StepCall) -> None:
        self._move(call, CallState.WAITING)
        del self._calls[call.name]

    # The function.

    def _function_ended(self, outcome: Outcome) -> None:
        if self.phase is Phase.DROPPED or self._finish is not None:
            return
        finish = finish_of(outcome, self._host.terms.limits)
        if finish.HasField("failure"):
            self._end(finish)
            log(WARNING, "workflow_failed", about=self._function.about, error=outcome.error)
        else:
            self._finish = finish
            self._touch()

    def _end(self, finish: pb.Finish) -> None:
        """The run is over, whatever still executes."""
        self._finish = finish
        self._cancel_function()
        self._touch()

    def _cancel_function(self) -> None:
        calls, self._calls, self._asked, self._busy = self._calls, {}, [], 0
        for call in calls.values():
            call.abandon()
        self._function.leave(self._host)
        for call in calls.values():  # also those that the function left to tasks of its own
            call.future.cancel()

    # Sending.

    def _touch(self) -> None:
        """Something has happened: send what there is to say as soon as the function has come to rest."""
        turns = 1 if self._finish is not None else _TURNS_TO_REST
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
        self._limit_bodies()
        if self.phase is Phase.HELD:
            self._flush()
        self._host.rested()

    def _limit_bodies(self) -> None:
        """Begin to count the time of bodies. Most have ended by the time the run rests, and need no timer."""
        begun, self._begun = self._begun, []
        for call in begun:
            call.limit(self._host.terms)

    def _flush(self) -> None:
        begins = self._take_asked()
        if begins and not self._reports.has_news:
            self._reports.add(pb.WorkerFrame(begin_steps=pb.BeginSteps()))
        self._conclude()
        if self._reports.has_news:
            self._send(begins)

    def _send(self, begins: list[StepCall]) -> None:
        executing = [call for call in self._unannounced if call.state is CallState.EXECUTING]
        self._unannounced = []
        self._interruptions = 0
        self._reports.announce(executing, begins)
        self._reports.send(self._host.clock.now(), self._host.send)

    def _take_asked(self) -> list[StepCall]:
        if not self._asked or not self._may_begin():
            return []
        most = int(min(len(self._asked), self._steps_left))
        begins, self._asked = self._asked[:most], self._asked[most:]
        self._steps_left -= most
        for call in begins:
            self._move(call, CallState.OPENING)
        return begins

    def _conclude(self) -> None:
        """Add the end, or the rest, of the run to what is sent if it has come to that."""
        if self._finish is not None and (not self._busy or self._finish.HasField("failure")):
            self._reports.add(pb.WorkerFrame(finish=self._finish))
            self.phase = Phase.FINISHING
        elif self._finish is None and self._calls and not self._busy and not self._expects_news:
            self._suspend(cached=True)
        elif self._is_stopped and len(self._asked) == self._busy and self._is_answered():
            # To pause, with bodies that were not let begin. Should the pause be withdrawn by now, they are due at once.
            self._suspend(cached=False, yields=True)
        elif self._steps_left < 1 and self._asked and len(self._asked) == self._busy and not self._expects_news:
            self._suspend(cached=False, yields=True)

    def _is_answered(self) -> bool:
        return self._reports.all_acked and not self._reports.has_news and not self._expects_news

    def _suspend(self, *, cached: bool, yields: bool = False) -> None:
        suspend = pb.Suspend(cached=cached, known_revision=self._heard_revision, yields=yields)
        self._reports.add(pb.WorkerFrame(suspend=suspend))
        self.phase, self._was_told = Phase.SUSPENDING, False

    def _follow_phase(self, report: Report, ack: pb.Ack) -> None:
        if report.frame.HasField("suspend"):
            self._expects_news = not ack.released and not self._was_told
            if ack.released and not report.frame.suspend.cached:
                self.drop()
                return
            self.phase = Phase.RELEASED if ack.released else Phase.HELD
            if ack.released:
                self._host.let_go(self)
        elif ack.released:
            self.drop()
