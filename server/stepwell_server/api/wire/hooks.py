"""Hooks: domain to protobuf."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.v1 import frames_pb2, hooks_pb2
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.hooks.hooks import Hook, HookStatus
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.values.payloads import EMPTY_OBJECT
from stepwell_server.engine.hooks.kind import HookInput
from stepwell_server.engine.spine.assignments import Assignment

HOOK_STATUSES = {
    HookStatus.PENDING: hooks_pb2.HOOK_STATUS_PENDING,
    HookStatus.PROCESSING: hooks_pb2.HOOK_STATUS_PROCESSING,
    HookStatus.COMPLETED: hooks_pb2.HOOK_STATUS_COMPLETED,
    HookStatus.FAILED: hooks_pb2.HOOK_STATUS_FAILED,
    HookStatus.CANCELLED: hooks_pb2.HOOK_STATUS_CANCELLED,
}


def hook_to_pb(hook: Hook, *, payload: bool = False) -> hooks_pb2.Hook:
    """A hook as it stands."""
    return hooks_pb2.Hook(
        hook_id=hook.key.hook_id,
        name=hook.name,
        status=HOOK_STATUSES[hook.status],
        payload=convert.payload_to_pb(hook.payload) if payload and hook.payload is not None else None,
        attempts=hook.attempts,
        retry=convert.retry_to_pb(hook.retry),
        idempotency_key=hook.idempotency_key,
        failure=None if hook.failure is None else convert.failure_to_pb(hook.failure),
        created_at=convert.timestamp_to_pb(hook.created_at),
        process_at=convert.timestamp_to_pb(hook.process_at),
        last_attempt_at=convert.optional_timestamp(hook.last_attempt_at),
        next_attempt_at=convert.optional_timestamp(hook.next_attempt_at),
        ended_at=convert.optional_timestamp(hook.ended_at),
        trace=hook.trace if payload else {},
    )


def task_to_pb(assignment: Assignment, input: HookInput) -> Iterator[frames_pb2.Task | frames_pb2.TaskState]:
    """A hook for its worker."""
    hook = input.hook
    (opened,) = load_open(assignment.task.open_steps)
    given = frames_pb2.HookInput(
        payload=convert.payload_to_pb(hook.payload or EMPTY_OBJECT),
        attempt=opened.attempt,
        max_attempts=hook.retry.max_attempts or 0,
        idempotency_key=hook.idempotency_key,
        created_at=convert.timestamp_to_pb(hook.created_at),
        timeout=convert.duration_to_pb(opened.policy.timeout),
        deadline_at=convert.timestamp_to_pb(opened.ends_at),
    )
    yield frames_pb2.Task(hook=given, trace=hook.trace)
