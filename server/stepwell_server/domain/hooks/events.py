"""Engine events as hooks: every event that a namespace has a handler for is told by a hook of that name."""

from __future__ import annotations

import json

from stepwell_server.domain.hooks.hooks import HookKey, NewHook
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import to_rfc3339


def handler_of(event: EngineEvent) -> Handler:
    """The hook handler that an event is told to."""
    return Handler(event.namespace, TaskKind.HOOK, event.name)


def to_hook(event: EngineEvent, unique: str) -> NewHook:
    """The hook that tells an event, under an id that no other has."""
    told: dict[str, object] = {
        "event": event.name,
        "namespace": event.namespace,
        **event.about,
        "at": to_rfc3339(event.at),
    }
    if event.run_at is not None:
        told |= {"reason": event.reason, "run_at": to_rfc3339(event.run_at)}
    if event.failure is not None:
        told["failure"] = {"name": event.failure.name, "message": event.failure.message}
    return NewHook(HookKey(event.namespace, unique), event.name, Payload(json.dumps(told)), unique, event.run_at)
