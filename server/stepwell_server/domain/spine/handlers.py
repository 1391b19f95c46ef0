"""Handlers: the user code that tasks are addressed to, by namespace, kind and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TaskKind(StrEnum):
    """The kind of thing that a task advances. Kinds are added with the primitives they belong to."""

    WORKFLOW = "workflow"
    HOOK = "hook"


RESUMING = frozenset({TaskKind.WORKFLOW})
"""Kinds whose tasks are handed out many times: those that have begun go before all others."""


@dataclass(frozen=True, slots=True)
class Handler:
    """Whom a task is addressed to."""

    namespace: str
    kind: TaskKind
    name: str


def known_handlers(named: Iterable[tuple[str, str, str]]) -> tuple[Handler, ...]:
    """Handlers by namespace, kind and name, without those whose kind only a newer server knows."""
    kinds = {kind.value: kind for kind in TaskKind}
    return tuple(Handler(space, kinds[kind], name) for space, kind, name in named if kind in kinds)


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler that a worker said it hosts."""

    handler: Handler
    declared: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the definition, by name. The kind has defaults for the others."""
