"""What the answers of the workflow service say."""

from __future__ import annotations

from typing import Any

from stepwell.v1 import workflows_pb2 as pb
from tests.chaos.workload.calls import Answer


def _event(reply: pb.SendEventResponse) -> Answer:
    event = reply.event
    return {"event_id": event.event_id, "created_at": event.created_at.ToMicroseconds()}, None


def _instance(reply: Any) -> Answer:
    instance = reply.instance
    return {
        "status": pb.InstanceStatus.Name(instance.status).removeprefix("INSTANCE_STATUS_").lower(),
        "run_number": instance.run_number,
        "created_at": instance.created_at.ToMicroseconds(),
    }, instance.revision


_OF_INSTANCE = (
    pb.CreateInstanceResponse,
    pb.GetInstanceResponse,
    pb.PauseInstanceResponse,
    pb.ResumeInstanceResponse,
    pb.TerminateInstanceResponse,
    pb.RestartInstanceResponse,
)
ANSWERS = dict.fromkeys(_OF_INSTANCE, _instance) | {pb.SendEventResponse: _event}
