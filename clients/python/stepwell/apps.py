"""App: everything that a worker hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.hooks.definition import HookDefinition
from stepwell.kinds import Definition, Kind, kind_name
from stepwell.v1.workers_pb2 import HANDLER_KIND_WORKFLOW
from stepwell.workflows.definition import AnyWorkflow, WorkflowEntrypoint, definition_of


@dataclass(frozen=True, slots=True)
class App:
    """The workflows and hooks that a worker hosts: `Worker(client, app)`, `stepwell worker module:app`."""

    workflows: Sequence[AnyWorkflow] = ()
    hooks: Sequence[HookDefinition[Any]] = ()
    definitions: dict[tuple[Kind, str], Definition] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for workflow in self.workflows:
            if getattr(workflow, "run", None) is WorkflowEntrypoint.run:  # a client does without
                name = definition_of(workflow).name
                raise TypeError(f"the workflow {name!r} has no async def run(self, event, step)")
        for hook in self.hooks:
            if not isinstance(hook, HookDefinition):
                raise TypeError(f"a hook is made by @hook(...), not {hook!r}")
        definitions: list[Definition] = [*map(definition_of, self.workflows), *self.hooks]
        for definition in definitions:
            self._add(definition)

    @property
    def names(self) -> list[str]:
        """The handlers of the app, in words: a workflow by its name, anything else with its kind."""
        return [
            name if kind == HANDLER_KIND_WORKFLOW else f"{name} ({kind_name(kind)})" for kind, name in self.definitions
        ]

    def _add(self, definition: Definition) -> None:
        key = (definition.kind, definition.name)
        if key in self.definitions:
            raise ValueError(f"two {kind_name(definition.kind)}s of this app are called {definition.name!r}")
        self.definitions[key] = definition
