"""The workflow function of a run: how it is called, and how its end is told."""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextvars import copy_context
from typing import Any, NoReturn

from stepwell import payloads
from stepwell.durations import to_datetime
from stepwell.errors import PayloadInvalid, to_failure
from stepwell.handlers import Outcome
from stepwell.logs import WARNING, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.common_pb2 import Failure
from stepwell.v1.server_pb2 import Limits
from stepwell.worker import strays
from stepwell.worker.executions import Ended, Surroundings, ended_with, outcome_of
from stepwell.worker.step_calls import StepCall
from stepwell.workflows.definition import WorkflowDefinition, WorkflowEvent
from stepwell.workflows.handle import WorkflowCaller
from stepwell.workflows.steps import WorkflowStep


class WorkflowFunction:
    """One execution of a workflow's program."""

    __slots__ = (
        "_client",
        "_family",
        "_loop",
        "_task",
        "_was_warned_of",
        "definition",
        "identity",
        "input_bytes",
        "key",
    )

    def __init__(self, definition: WorkflowDefinition[Any, Any], client: WorkflowCaller | None, key: str) -> None:
        self.definition = definition
        self.key = key
        self.identity: tuple[str | int, ...] = ()  # of the run, unlike any other there ever was
        self.input_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Outcome] | None = None
        self._family: object = None
        self._was_warned_of = False
        self._client = client

    @property
    def has_begun(self) -> bool:
        """Whether it was called."""
        return self._task is not None

    @property
    def about(self) -> dict[str, str]:
        """The fields of log lines about the run."""
        return {"workflow": self.definition.name, "instance_id": self.key}

    def begin(self, task: pb.WorkflowInput, step: WorkflowStep, ended: Ended) -> None:
        """Call the function; `ended` is told when it has ended, in whatever way.

        It is not kept: a run that is over goes at once, and does not wait for the garbage collector.
        """
        namespace = "" if self._client is None else self._client.namespace
        created_at = task.created_at.ToNanoseconds()  # an id can be used again when its instance is forgotten
        self.input_bytes = task.params.ByteSize()
        self.identity = (namespace, self.definition.name, self.key, created_at, task.run_number)
        context = copy_context()
        self._family = strays.found_family(context)
        self._task = self._loop.create_task(outcome_of(lambda: self._execute(task, step)), context=context)
        self._task.add_done_callback(lambda task: ended(ended_with(task)))

    def leave(self, around: Surroundings, calls: list[StepCall]) -> None:
        """Stop the function wherever it waits, and the tasks of its own that wait for steps."""
        if self._task is not None:
            around.leave(self._task)
        for call in calls:
            call.future.cancel()

    async def park(self) -> NoReturn:
        """Never return to a function that goes on after its run was taken from it: it would catch another end as well.

        Should it catch also that it is thrown away, and call again, the garbage collector may be at work anywhere: the
        task that is current then is not the function's own.
        """
        calling = asyncio.current_task() if asyncio._get_running_loop() is self._loop else None
        if calling is not None and self._task is not None and strays.current_family() is self._family:
            strays.forsake(calling)
            strays.forsake(self._task)  # which may wait for the task that called
            if sys.exc_info()[1] is None:  # else it cleans up, and may go on with its cancellation
                self._warn()
        else:
            strays.silence_once()
        await strays.park(self._loop)

    def _warn(self) -> None:
        if not self._was_warned_of:
            self._was_warned_of = True
            log(WARNING, "workflow_goes_on: it catches its cancellation and must raise it again", about=self.about)

    async def _execute(self, task: pb.WorkflowInput, step: WorkflowStep) -> Any:
        payload = payloads.from_argument(task.params, self.definition.params_type)
        event = WorkflowEvent(payload, to_datetime(task.created_at), self.key, task.run_number)
        running = self.definition.program(self._client)(event, step)
        if not inspect.isawaitable(running):
            raise TypeError(f"the workflow {self.definition.name!r} is not async: write async def")
        return await running


def finish_of(outcome: Outcome, limits: Limits) -> pb.Finish:
    """How a function ended, for the wire. An output that cannot be stored is a failure."""
    if outcome.error is not None:
        return pb.Finish(failure=to_failure(outcome.error))
    try:
        return pb.Finish(output=payloads.to_payload(outcome.value, limits))
    except PayloadInvalid as invalid:
        return pb.Finish(failure=Failure(name=invalid.reason, message=f"the workflow's output: {invalid}"))
