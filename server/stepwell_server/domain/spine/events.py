"""Engine events: what happens to tasks, for the one listener of the replica. `EngineEvent` in hooks.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import Micros

EVENT_PREFIXES = ("workflow.", "pipeline.", "queue.", "buffer.", "continuous.")
"""How the names of events begin. Handlers of such names are told of events."""


def is_event(name: str) -> bool:
    """Whether a name can be that of an event."""
    return name.startswith(EVENT_PREFIXES)


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to what a task advances."""

    name: str
    """Of the event: "workflow.completed"."""
    namespace: str
    at: Micros
    about: Mapping[str, str | int] = field(default_factory=dict)
    """The thing that changed, in the words of its primitive."""
    reason: str = ""
    run_at: Micros | None = None
    """When that can run, of an event that says so."""
    failure: Failure | None = None
