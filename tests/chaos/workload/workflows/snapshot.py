"""The end of a run as the API tells it, page by page, and as SQL tells it. The two must agree."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.chaos.facts.fact import Fact, Row, key_of
from tests.chaos.facts.workflows import EventRow, InstanceRow, StepRow
from tests.chaos.site.names import NAMESPACES
from tests.chaos.workload.tables import fetch
from tests.chaos.workload.workflows.load import Orders

PAGE = 100
SECONDS = 20.0


async def snapshot(address: str, url: str) -> list[Fact]:
    """All instances with their steps and events, by both."""
    return [*await _by_api(address), *await _by_sql(url)]


async def _by_api(address: str) -> list[Fact]:
    facts: list[Fact] = []
    async with aio.insecure_channel(address) as channel:
        stub: Any = WorkflowServiceStub(channel)
        for namespace, workflow in product(NAMESPACES, Orders.handlers):
            async for instance in _instances(stub, namespace, workflow):
                facts.append(_instance(instance))
                for run in range(instance.run_number + 1):
                    facts.extend([one async for one in _history(stub, instance, run)])
    return facts


async def _instances(stub: Any, namespace: str, workflow: str) -> AsyncIterator[pb.Instance]:
    view = pb.INSTANCE_VIEW_FULL
    request = pb.ListInstancesRequest(namespace=namespace, workflow=workflow, page_size=PAGE, view=view)
    while True:
        page = await stub.ListInstances(request, timeout=SECONDS)
        for instance in page.instances:
            yield instance
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def _history(stub: Any, instance: pb.Instance, run: int) -> AsyncIterator[Fact]:
    request = pb.GetHistoryRequest(
        namespace=instance.namespace,
        workflow=instance.workflow,
        instance_id=instance.instance_id,
        run_number=run,
        page_size=PAGE,
    )
    key = key_of(instance.namespace, instance.workflow, instance.instance_id)
    while True:
        page = await stub.GetHistory(request, timeout=SECONDS)
        for entry in page.entries:
            yield _step(key, run, entry.step) if entry.HasField("step") else _event(key, run, entry.event)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _instance(instance: pb.Instance) -> InstanceRow:
    failed = instance.HasField("failure")
    return InstanceRow(
        source="api",
        key=key_of(instance.namespace, instance.workflow, instance.instance_id),
        run_number=instance.run_number,
        status=pb.InstanceStatus.Name(instance.status).removeprefix("INSTANCE_STATUS_").lower(),
        params=_json(instance, "params"),
        output=_json(instance, "output"),
        error_name=instance.failure.name if failed else None,
        error_message=instance.failure.message if failed else None,
        labels=dict(instance.labels),
        created_at=instance.created_at.ToMicroseconds(),
        updated_at=instance.updated_at.ToMicroseconds(),
        started_at=_micros(instance, "started_at"),
        ended_at=_micros(instance, "ended_at"),
        wake_at=_micros(instance, "wake_at"),
        revision=instance.revision,
    )


def _step(key: str, run: int, step: pb.Step) -> StepRow:
    failed = step.HasField("failure")
    return StepRow(
        source="api",
        key=key,
        run=run,
        name=step.name,
        type=pb.StepType.Name(step.type).removeprefix("STEP_TYPE_").lower(),
        status=pb.StepStatus.Name(step.status).removeprefix("STEP_STATUS_").lower(),
        attempts=step.attempts,
        max_attempts=step.max_attempts if step.HasField("max_attempts") else None,
        timeout=step.timeout.ToMicroseconds() if step.HasField("timeout") else None,
        next_retry_at=_micros(step, "next_retry_at"),
        wake_at=_micros(step, "wake_at"),
        event_type=step.event_type,
        result=_json(step, "result"),
        error_name=step.failure.name if failed else None,
        error_message=step.failure.message if failed else None,
        created_at=step.created_at.ToMicroseconds(),
        updated_at=step.updated_at.ToMicroseconds(),
    )


def _event(key: str, run: int, event: pb.Event) -> EventRow:
    return EventRow(
        source="api",
        key=key,
        run=run,
        event_id=event.event_id,
        type=event.type,
        payload=_json(event, "payload"),
        created_at=event.created_at.ToMicroseconds(),
        delivered_at=_micros(event, "delivered_at"),
        consumed_by_step=event.consumed_by_step or None,
    )


def _json(message: Message, name: str) -> str | None:
    return getattr(message, name).json if message.HasField(name) else None


def _micros(message: Message, name: str) -> int | None:
    stamp: Timestamp = getattr(message, name)
    return stamp.ToMicroseconds() if message.HasField(name) else None


# ---- by SQL

_INSTANCES = """
SELECT i.*, t.run_at AS task_run_at, t.status AS task_status, t.revision AS task_revision
FROM workflow_instances i LEFT JOIN tasks t ON t.id = i.id
"""
_STEPS = """
SELECT s.*, i.namespace, i.workflow, i.instance_id FROM workflow_steps s JOIN workflow_instances i ON i.id = s.task_id
"""
_EVENTS = """
SELECT e.*, i.workflow, i.instance_id FROM workflow_events e JOIN workflow_instances i ON i.id = e.task_id
"""


async def _by_sql(url: str) -> list[Fact]:
    facts: list[Fact] = [_instance_of(row) for row in await fetch(url, _INSTANCES)]
    facts += [_step_of(row) for row in await fetch(url, _STEPS)]
    return facts + [_event_of(row) for row in await fetch(url, _EVENTS)]


def _key(row: Row) -> str:
    return key_of(row["namespace"], row["workflow"], row["instance_id"])


def _instance_of(row: Row) -> InstanceRow:
    waits = row["status"] == "waiting" and row["task_status"] == "pending"
    return InstanceRow(
        source="sql",
        key=_key(row),
        run_number=row["run_number"],
        status=row["status"],
        params=row["params"],
        output=row["output"],
        error_name=row["error_name"],
        error_message=row["error_message"],
        labels=json.loads(row["labels"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        wake_at=row["task_run_at"] if waits else None,
        revision=row["revision"] if row["task_revision"] is None else row["task_revision"],
    )


def _step_of(row: Row) -> StepRow:
    same = ("name", "type", "status", "attempts", "max_attempts", "timeout", "next_retry_at", "wake_at", "event_type")
    also = ("result", "error_name", "error_message", "created_at", "updated_at")
    return StepRow(source="sql", key=_key(row), run=row["run_number"], **{name: row[name] for name in same + also})


def _event_of(row: Row) -> EventRow:
    return EventRow(
        source="sql",
        key=_key(row),
        run=row["run_number"],
        event_id=row["position"],
        type=row["type"],
        payload=row["payload"],
        created_at=row["created_at"],
        delivered_at=row["delivered_at"],
        consumed_by_step=row["consumed_by_step"] or None,
        request_id=row["request_id"],
    )
