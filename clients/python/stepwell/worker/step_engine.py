"""The calls of a workflow function to its run, through its WorkflowStep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from stepwell.errors import DuplicateStepKey
from stepwell.handlers import Body, Outcome
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.worker import step_records as records
from stepwell.worker.function import WorkflowFunction
from stepwell.worker.host import Host
from stepwell.worker.open_steps import OpenSteps
from stepwell.worker.outgoing import Reports
from stepwell.worker.standing import Standing
from stepwell.worker.step_calls import CallState, StepCall
from stepwell.workflows.steps import StepOptions, Timers


class RunEngine:
    """Executes the steps of one run. The run does not keep it: it goes with the function."""

    __slots__ = ("_function", "_host", "_reports", "_standing", "_steps", "_touch")

    def __init__(
        self,
        host: Host,
        standing: Standing,
        function: WorkflowFunction,
        reports: Reports,
        steps: OpenSteps,
        touch: Callable[[], None],
    ) -> None:
        self._host = host
        self._standing = standing
        self._function = function
        self._reports = reports
        self._steps = steps
        self._touch = touch

    @property
    def timers(self) -> Timers:
        """How far ahead the server lets a step wait."""
        return self._host.terms.timers(self._host.clock.now())

    async def do(self, name: str, body: Body, options: StepOptions) -> pb.StepState:
        """Execute a body unless its result is known already."""
        known = await self._recall(name, states.STEP_TYPE_DO)
        if known is not None and records.is_finished(known):
            return records.result_of(known)
        call = self._open(name, states.STEP_TYPE_DO)
        call.body, call.context = body, copy_context()
        call.options, call.policy = options, options.to_policy()
        if known is None or known.status == states.STEP_STATUS_PENDING:
            self._steps.bodies.ask(call)
        elif self._reports.is_undecided(name):
            call.attempt = known.attempts
            self._steps.calls.move(call, CallState.VERDICT)
        return await self._answer(call)

    async def wait(self, wait: pb.Wait) -> pb.StepState:
        """Wait, unless that is over already."""
        type = records.type_of(wait)
        known = await self._recall(wait.name, type)
        if known is not None and records.is_finished(known):
            return records.result_of(known)
        call = self._open(wait.name, type)
        if known is None:
            self._steps.records.put(records.unfinished(wait.name, type, 0))
            self._reports.add(pb.WorkerFrame(wait=wait))
            self._standing.steps_left -= 1
        return await self._answer(call)

    async def _recall(self, name: str, type: states.StepType.ValueType) -> pb.StepState | None:
        if self._standing.is_over:
            await self._function.park()
        if self._steps.calls.get(name) is not None:
            raise DuplicateStepKey(f"the step {name!r} is open already")
        return self._steps.records.recall(name, type, self._host.terms.max_steps)

    def _open(self, name: str, type: states.StepType.ValueType) -> StepCall:
        call = StepCall(name, type, asyncio.get_running_loop().create_future(), self._body_ended)
        self._steps.calls.add(call)
        return call

    async def _answer(self, call: StepCall) -> pb.StepState:
        self._standing.expects_news = False
        self._touch()
        try:
            return await call.future
        except asyncio.CancelledError:
            if self._steps.calls.holds(call):
                self._steps.withdraw(call)
                self._touch()
            raise

    def _body_ended(self, call: StepCall, outcome: Outcome) -> None:
        self._steps.ended(call, outcome)
        self._touch()
