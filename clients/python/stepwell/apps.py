"""App: everything that a worker hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepwell.hooks.definition import HookDefinition
from stepwell.workflows.definition import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint, definition_of

D = TypeVar("D", WorkflowDefinition[Any, Any], HookDefinition[Any])


@dataclass(frozen=True, slots=True)
class App:
    """The workflows and hooks that a worker hosts: `Worker(client, app)`, `stepwell worker module:app`."""

    workflows: Sequence[AnyWorkflow] = ()
    hooks: Sequence[HookDefinition[Any]] = ()
    workflow_definitions: dict[str, WorkflowDefinition[Any, Any]] = field(init=False, repr=False)
    hook_definitions: dict[str, HookDefinition[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for workflow in self.workflows:
            if getattr(workflow, "run", None) is WorkflowEntrypoint.run:  # a client does without
                name = definition_of(workflow).name
                raise TypeError(f"the workflow {name!r} has no async def run(self, event, step)")
        for hook in self.hooks:
            if not isinstance(hook, HookDefinition):
                raise TypeError(f"a hook is made by @hook(...), not {hook!r}")
        workflows = _by_name("workflows", map(definition_of, self.workflows))
        object.__setattr__(self, "workflow_definitions", workflows)
        object.__setattr__(self, "hook_definitions", _by_name("hooks", self.hooks))

    @property
    def names(self) -> list[str]:
        """What the app hosts, in words."""
        return [*self.workflow_definitions, *(f"{name} (hook)" for name in self.hook_definitions)]


def _by_name(kind: str, definitions: Iterable[D]) -> dict[str, D]:
    named: dict[str, D] = {}
    for definition in definitions:
        if definition.name in named:
            raise ValueError(f"two {kind} of this app are called {definition.name!r}")
        named[definition.name] = definition
    return named
