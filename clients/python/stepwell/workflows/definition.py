"""Definitions of workflows: classes or functions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, get_args, get_origin, overload

from stepwell.kinds import Kind
from stepwell.signatures import concrete, first_line, hints_of, is_async
from stepwell.v1 import workers_pb2 as pb
from stepwell.workflows.handle import Workflow, WorkflowCaller
from stepwell.workflows.steps import WorkflowStep

P = TypeVar("P")
R = TypeVar("R")
ChildP = TypeVar("ChildP")
ChildR = TypeVar("ChildR")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class WorkflowEvent(Generic[P]):
    """The event that a run begins with: the instance's parameters, and its identity."""

    payload: P
    timestamp: datetime
    instance_id: str
    run_number: int = 0


Program: TypeAlias = Callable[[WorkflowEvent[Any], WorkflowStep], Awaitable[Any]]


class WorkflowEntrypoint(Generic[P, R]):
    """Base of workflow classes: set `name`, write `run`. A new object serves every execution of a run.

    `WorkflowEntrypoint[Params, Result]` names the types that `event.payload` and `result()` are built into.
    """

    name: ClassVar[str]
    _client: WorkflowCaller | None = None

    async def run(self, event: WorkflowEvent[P], step: WorkflowStep) -> R:
        """The workflow itself: everything with an effect belongs into a step."""
        raise NotImplementedError(f"{type(self).__name__} has no run(self, event, step)")

    @overload
    def workflow(self, workflow: type[WorkflowEntrypoint[ChildP, ChildR]]) -> Workflow[ChildP, ChildR]: ...
    @overload
    def workflow(self, workflow: WorkflowDefinition[ChildP, ChildR]) -> Workflow[ChildP, ChildR]: ...
    @overload
    def workflow(self, workflow: str) -> Workflow[Any, Any]: ...
    def workflow(self, workflow: Any) -> Workflow[Any, Any]:
        """Access to another workflow through the worker's client; to be used inside steps."""
        if self._client is None:
            raise RuntimeError("workflow() is for runs that a Worker executes: this object has no client")
        return workflow_of(self._client, workflow)


@dataclass(frozen=True, slots=True)
class WorkflowDefinition(Generic[P, R]):
    """A workflow as the SDK sees it, whichever form it was written in."""

    kind: ClassVar[Kind] = pb.HANDLER_KIND_WORKFLOW
    name: str
    description: str
    params_type: Any
    result_type: Any
    program: Callable[[WorkflowCaller | None], Program] = field(repr=False)

    def __call__(self, event: WorkflowEvent[P], step: WorkflowStep) -> Awaitable[R]:
        """Call the workflow like the function that it was written as, for instance in a test of its own."""
        return self.program(None)(event, step)

    def to_handler(self) -> pb.Handler:
        """Its part of Hello."""
        described = pb.WorkflowDefinition(description=self.description)
        return pb.Handler(kind=self.kind, name=self.name, workflow=described)


AnyWorkflow: TypeAlias = type[WorkflowEntrypoint[Any, Any]] | WorkflowDefinition[Any, Any]


def workflow(
    name: str,
) -> Callable[[Callable[[WorkflowEvent[P], WorkflowStep], Awaitable[R]]], WorkflowDefinition[P, R]]:
    """Make a workflow of `async def f(event, step)`. It registers nothing: give the result to an App."""
    if not isinstance(name, str):
        raise TypeError('a workflow has a name: write @workflow("...")')

    def define(function: Callable[[WorkflowEvent[P], WorkflowStep], Awaitable[R]]) -> WorkflowDefinition[P, R]:
        _check_async(name, function)
        params_type, result_type = _hinted_types(function)
        return WorkflowDefinition(
            _checked_name(name), first_line(function.__doc__), params_type, result_type, lambda _client: function
        )

    return define


def definition_of(workflow: AnyWorkflow) -> WorkflowDefinition[Any, Any]:
    """The definition of a workflow class; a definition is its own. TypeError if it is neither, or has no name."""
    if isinstance(workflow, WorkflowDefinition):
        return workflow
    if not (isinstance(workflow, type) and issubclass(workflow, WorkflowEntrypoint)):
        raise TypeError(f"a workflow is a WorkflowEntrypoint class or made by @workflow(...), not {workflow!r}")
    return _definition_of_class(workflow)  # type: ignore[arg-type]  # mypy does not see that classes have a hash


@lru_cache(_REMEMBERED)
def _definition_of_class(workflow: type[WorkflowEntrypoint[Any, Any]]) -> WorkflowDefinition[Any, Any]:
    """Read once for each class: a client asks for it with every instance, and type hints take long to evaluate."""
    name = getattr(workflow, "name", None)
    if not isinstance(name, str):
        raise TypeError(f'give the workflow class {workflow.__name__} a name: name = "..."')
    _check_async(name, workflow.run)
    params_type, result_type = _declared_types(workflow)
    return WorkflowDefinition(
        _checked_name(name), first_line(workflow.__dict__.get("__doc__")), params_type, result_type, _program(workflow)
    )


def workflow_of(client: WorkflowCaller, workflow: AnyWorkflow | str) -> Workflow[Any, Any]:
    """A workflow on the server: by its definition, with its types, or by its name, with plain JSON."""
    if isinstance(workflow, str):
        return Workflow(client, workflow, None)
    definition = definition_of(workflow)
    return Workflow(client, definition.name, definition.result_type)


def _program(cls: type[WorkflowEntrypoint[Any, Any]]) -> Callable[[WorkflowCaller | None], Program]:
    def program(client: WorkflowCaller | None) -> Program:
        entrypoint = cls()
        entrypoint._client = client
        return entrypoint.run

    return program


def _check_async(name: str, function: Callable[..., Any]) -> None:
    if not is_async(function):
        raise TypeError(f"the workflow {name!r} is not async: write async def, without yield")


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f'a workflow name is 1 to 64 letters, digits, "-" or "_", not beginning with "-": {name!r}')
    return name


def _declared_types(cls: type[WorkflowEntrypoint[Any, Any]]) -> tuple[Any, Any]:
    for ancestor in cls.__mro__:
        for base in ancestor.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is WorkflowEntrypoint:
                params_type, result_type = (concrete(arg) for arg in get_args(base))
                return params_type, result_type
    return _hinted_types(cls.run)


def _hinted_types(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The types that the signature names; those that cannot be resolved, such as local classes, count as plain JSON."""
    hints = hints_of(function)
    events = [get_args(hint)[0] for hint in hints.values() if get_origin(hint) is WorkflowEvent]
    return concrete(events[0] if events else None), concrete(hints.get("return"))
