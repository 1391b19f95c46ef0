"""What the answers of the hook and dispatcher services say."""

from __future__ import annotations

from stepwell.v1 import dispatchers_pb2, hooks_pb2
from tests.chaos.workload.calls import Answer


def _stored(reply: hooks_pb2.TriggerHooksResponse) -> Answer:
    stored = [one.hook for one in reply.results if one.HasField("hook")]
    return {"hooks": {one.hook_id: one.created_at.ToMicroseconds() for one in stored}}, None


def _next_wake(reply: dispatchers_pb2.GetNextWakeResponse) -> Answer:
    wake = reply.next_wake
    at = wake.wake_at.ToMicroseconds() if wake.HasField("wake_at") else None
    return {"wake_at": at, "now": reply.now.ToMicroseconds()}, None


ANSWERS = {hooks_pb2.TriggerHooksResponse: _stored, dispatchers_pb2.GetNextWakeResponse: _next_wake}
