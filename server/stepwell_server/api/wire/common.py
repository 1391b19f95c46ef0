"""Domain to protobuf and back: total functions, no decisions."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import common_pb2, errors_pb2, hooks_pb2, namespaces_pb2, server_pb2, workflows_pb2
from stepwell_server.api.edge.errors import code_of
from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.hooks.hooks import Hook, HookStatus
from stepwell_server.domain.namespaces import DEFAULT_NAMESPACE, Namespace, NamespaceLimits, NamespaceSpec, Retention
from stepwell_server.domain.values.errors import DurationOutOfRange, InvalidField, StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import LONGEST_DELAY, MOST_ATTEMPTS, Backoff, RetryPolicy
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.domain.workflows.instances import Event, Instance, InstanceStatus, Step, StepStatus, StepType
from stepwell_server.engine.server import Server

_DATABASE_KINDS = {
    "sqlite": server_pb2.DATABASE_KIND_SQLITE,
    "postgresql": server_pb2.DATABASE_KIND_POSTGRESQL,
}
_DISPATCH_MODES = {
    "embedded": server_pb2.DISPATCH_MODE_EMBEDDED,
    "external": server_pb2.DISPATCH_MODE_EXTERNAL,
}


def timestamp_to_pb(instant: Micros) -> Timestamp:
    """An instant."""
    seconds, micros = divmod(instant, SECOND)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def timestamp_from_pb(instant: Timestamp) -> Micros:
    """An instant; finer digits than microseconds are cut off."""
    return instant.seconds * SECOND + instant.nanos // 1000


def duration_to_pb(duration: Micros) -> Duration:
    """A duration."""
    seconds, micros = divmod(duration, SECOND)
    return Duration(seconds=seconds, nanos=micros * 1000)


def duration_from_pb(duration: Duration) -> Micros:
    """A duration; finer digits than microseconds are cut off."""
    return duration.seconds * SECOND + duration.nanos // 1000


def namespace_to_pb(namespace: Namespace) -> namespaces_pb2.Namespace:
    """A namespace with all its fields."""
    spec = namespace.spec
    return namespaces_pb2.Namespace(
        name=spec.name,
        description=spec.description,
        retention=retention_to_pb(spec.retention),
        limits=namespaces_pb2.NamespaceLimits(
            max_payload_bytes=spec.limits.max_payload_bytes,
            max_steps_per_run=spec.limits.max_steps_per_run,
            max_pending_events=spec.limits.max_pending_events,
        ),
        created_at=timestamp_to_pb(namespace.created_at),
        updated_at=timestamp_to_pb(namespace.updated_at),
    )


def retention_to_pb(retention: Retention) -> namespaces_pb2.Retention:
    """Retention; for ever is an unset duration."""
    return namespaces_pb2.Retention(
        complete=_optional_duration(retention.complete),
        errored=_optional_duration(retention.errored),
        terminated=_optional_duration(retention.terminated),
    )


def namespace_spec_from_pb(
    request: namespaces_pb2.CreateNamespaceRequest | namespaces_pb2.UpdateNamespaceRequest,
) -> NamespaceSpec:
    """What a caller wants a namespace to be."""
    kept = request.retention
    return NamespaceSpec(
        name=request.name,
        description=request.description,
        retention=Retention(
            complete=duration_from_pb(kept.complete) if kept.HasField("complete") else None,
            errored=duration_from_pb(kept.errored) if kept.HasField("errored") else None,
            terminated=duration_from_pb(kept.terminated) if kept.HasField("terminated") else None,
        ),
        limits=NamespaceLimits(
            max_payload_bytes=request.limits.max_payload_bytes,
            max_steps_per_run=request.limits.max_steps_per_run,
            max_pending_events=request.limits.max_pending_events,
        ),
    )


def limits_to_pb(limits: Limits) -> server_pb2.Limits:
    """What the server accepts."""
    return server_pb2.Limits(
        max_message_bytes=limits.message_bytes,
        max_payload_bytes=limits.payload_bytes,
        max_payload_depth=limits.payload_depth,
        max_batch_items=limits.batch_items,
        max_steps_per_run=limits.steps_per_run,
        max_pending_events=limits.pending_events,
        max_page_size=limits.page_size,
        max_timer=duration_to_pb(limits.timer),
        max_streams_per_principal=limits.streams_per_principal,
    )


def server_info_to_pb(
    server: Server, clock: ClockReading, protocol: tuple[int, int]
) -> server_pb2.GetServerInfoResponse:
    """A replica's description of itself."""
    replica = server.replica
    lowest, highest = protocol
    return server_pb2.GetServerInfoResponse(
        version=replica.version,
        min_protocol_version=lowest,
        max_protocol_version=highest,
        replica_id=replica.replica_id,
        started_at=timestamp_to_pb(replica.started_at),
        now=timestamp_to_pb(clock.now),
        virtual_clock=clock.virtual,
        database=server_pb2.DatabaseInfo(
            kind=_DATABASE_KINDS[replica.deployment.database_kind],
            version=replica.deployment.database_version,
            database_id=replica.deployment.database_id,
            schema_version=replica.deployment.schema_version,
        ),
        dispatch_mode=_DISPATCH_MODES[replica.dispatch_mode],
        limits=limits_to_pb(replica.limits),
        wake_mode=server_pb2.WAKE_MODE_HINTS if server.hints_work else server_pb2.WAKE_MODE_POLLING,
    )


def _optional_duration(duration: Micros | None) -> Duration | None:
    return None if duration is None else duration_to_pb(duration)


# ---- workflows

STATUSES = {
    InstanceStatus.QUEUED: workflows_pb2.INSTANCE_STATUS_QUEUED,
    InstanceStatus.RUNNING: workflows_pb2.INSTANCE_STATUS_RUNNING,
    InstanceStatus.WAITING: workflows_pb2.INSTANCE_STATUS_WAITING,
    InstanceStatus.WAITING_FOR_PAUSE: workflows_pb2.INSTANCE_STATUS_WAITING_FOR_PAUSE,
    InstanceStatus.PAUSED: workflows_pb2.INSTANCE_STATUS_PAUSED,
    InstanceStatus.COMPLETE: workflows_pb2.INSTANCE_STATUS_COMPLETE,
    InstanceStatus.ERRORED: workflows_pb2.INSTANCE_STATUS_ERRORED,
    InstanceStatus.TERMINATED: workflows_pb2.INSTANCE_STATUS_TERMINATED,
}
STEP_TYPES = {
    StepType.DO: workflows_pb2.STEP_TYPE_DO,
    StepType.SLEEP: workflows_pb2.STEP_TYPE_SLEEP,
    StepType.WAIT_FOR_EVENT: workflows_pb2.STEP_TYPE_WAIT_FOR_EVENT,
}
STEP_STATUSES = {
    StepStatus.PENDING: workflows_pb2.STEP_STATUS_PENDING,
    StepStatus.RUNNING: workflows_pb2.STEP_STATUS_RUNNING,
    StepStatus.WAITING: workflows_pb2.STEP_STATUS_WAITING,
    StepStatus.COMPLETED: workflows_pb2.STEP_STATUS_COMPLETED,
    StepStatus.ERRORED: workflows_pb2.STEP_STATUS_ERRORED,
    StepStatus.CANCELLED: workflows_pb2.STEP_STATUS_CANCELLED,
}
_BACKOFFS = {
    Backoff.CONSTANT: common_pb2.BACKOFF_CONSTANT,
    Backoff.LINEAR: common_pb2.BACKOFF_LINEAR,
    Backoff.EXPONENTIAL: common_pb2.BACKOFF_EXPONENTIAL,
}
_FROM_BACKOFFS = {number: backoff for backoff, number in _BACKOFFS.items()}
HOOK_STATUSES = {
    HookStatus.PENDING: hooks_pb2.HOOK_STATUS_PENDING,
    HookStatus.PROCESSING: hooks_pb2.HOOK_STATUS_PROCESSING,
    HookStatus.COMPLETED: hooks_pb2.HOOK_STATUS_COMPLETED,
    HookStatus.FAILED: hooks_pb2.HOOK_STATUS_FAILED,
    HookStatus.CANCELLED: hooks_pb2.HOOK_STATUS_CANCELLED,
}


def namespace_from_pb(name: str) -> str:
    """The namespace that a request names, or the default."""
    return name or DEFAULT_NAMESPACE


def payload_from_pb(payload: common_pb2.Payload) -> Payload | None:
    """A payload. None: it has no body, whether it is set or not, and that is no data."""
    match payload.WhichOneof("body"):
        case "json":
            return Payload(payload.json)
        case "binary":
            return Payload(binary=payload.binary, encoding=payload.encoding)
        case _:
            return None


def payload_to_pb(payload: Payload) -> common_pb2.Payload:
    """A payload."""
    if payload.binary is None:
        return common_pb2.Payload(json=payload.json)
    return common_pb2.Payload(binary=payload.binary, encoding=payload.encoding)


def failure_from_pb(failure: common_pb2.Failure) -> Failure:
    """What went wrong."""
    return Failure(failure.name, failure.message, failure.non_retryable, failure.details)


def failure_to_pb(failure: Failure) -> common_pb2.Failure:
    """What went wrong."""
    return common_pb2.Failure(
        name=failure.name,
        message=failure.message,
        non_retryable=failure.non_retryable,
        details=failure.details,
    )


def retry_to_pb(retry: RetryPolicy) -> common_pb2.RetryPolicy:
    """How something is retried."""
    policy = common_pb2.RetryPolicy(
        delay=duration_to_pb(retry.delay),
        backoff=_BACKOFFS[retry.backoff],
        max_delay=_optional_duration(retry.max_delay),
    )
    if retry.max_attempts is None:
        policy.unlimited = True
    else:
        policy.max_attempts = retry.max_attempts
    return policy


def retry_from_pb(given: common_pb2.RetryPolicy, default: RetryPolicy) -> RetryPolicy:
    """How something is retried, with the default where nothing is said; a default gives way to what is said."""
    delay = duration_within("delay", given.delay, LONGEST_DELAY) if given.HasField("delay") else None
    longest = duration_within("max_delay", given.max_delay, LONGEST_DELAY) if given.HasField("max_delay") else None
    if delay is None:
        delay = default.delay if longest is None else min(default.delay, longest)
    if longest is None:
        longest = None if default.max_delay is None else max(delay, default.max_delay)
    elif longest < delay:
        raise InvalidField("max_delay must not be shorter than delay", field="max_delay")
    backoff = _FROM_BACKOFFS.get(given.backoff, default.backoff)
    return RetryPolicy(_attempts_from_pb(given, default), delay, backoff, longest)


def _attempts_from_pb(given: common_pb2.RetryPolicy, default: RetryPolicy) -> int | None:
    match given.WhichOneof("attempts"):
        case "max_attempts":
            if not 1 <= given.max_attempts <= MOST_ATTEMPTS:
                raise InvalidField(f"max_attempts must be 1 to {MOST_ATTEMPTS}", field="max_attempts")
            return given.max_attempts
        case "unlimited" if given.unlimited:
            return None
        case _:
            return default.max_attempts


def duration_within(field: str, duration: Duration, longest: Micros) -> Micros:
    """A duration that may not be longer than this."""
    read = duration_from_pb(duration)
    if read > longest:
        raise DurationOutOfRange(f"{field} is longer than it can be", field=field)
    return read


def hook_to_pb(hook: Hook, *, payload: bool = False) -> hooks_pb2.Hook:
    """A hook as it stands."""
    return hooks_pb2.Hook(
        hook_id=hook.key.hook_id,
        name=hook.name,
        status=HOOK_STATUSES[hook.status],
        payload=payload_to_pb(hook.payload) if payload and hook.payload is not None else None,
        attempts=hook.attempts,
        retry=retry_to_pb(hook.retry),
        idempotency_key=hook.idempotency_key,
        failure=None if hook.failure is None else failure_to_pb(hook.failure),
        created_at=timestamp_to_pb(hook.created_at),
        process_at=timestamp_to_pb(hook.process_at),
        last_attempt_at=_optional_timestamp(hook.last_attempt_at),
        next_attempt_at=_optional_timestamp(hook.next_attempt_at),
        ended_at=_optional_timestamp(hook.ended_at),
        trace=hook.trace if payload else {},
    )


def reason_to_pb(error: StepwellError) -> errors_pb2.ErrorReason.ValueType:
    """The reason of a refusal, as its enum has it."""
    return errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason}")


def item_error_to_pb(error: StepwellError) -> errors_pb2.ItemError:
    """The refusal of one item of a batch."""
    number, _ = code_of(error).value
    return errors_pb2.ItemError(code=number, reason=reason_to_pb(error), message=str(error), metadata=error.metadata)


def instance_to_pb(instance: Instance, *, payloads: bool = True) -> workflows_pb2.Instance:
    """An instance; without its params and output if those are not wanted."""
    key = instance.key
    message = workflows_pb2.Instance(
        namespace=key.namespace,
        workflow=key.workflow,
        instance_id=key.instance_id,
        run_number=instance.run_number,
        status=STATUSES[instance.status],
        labels=instance.labels,
        created_at=timestamp_to_pb(instance.created_at),
        updated_at=timestamp_to_pb(instance.updated_at),
        started_at=_optional_timestamp(instance.started_at),
        ended_at=_optional_timestamp(instance.ended_at),
        wake_at=_optional_timestamp(instance.wake_at),
        revision=instance.revision,
        trace=instance.trace if payloads else {},
    )
    if instance.failure is not None:
        message.failure.CopyFrom(failure_to_pb(instance.failure))
    if payloads and instance.params is not None:
        message.params.CopyFrom(payload_to_pb(instance.params))
    if payloads and instance.output is not None:
        message.output.CopyFrom(payload_to_pb(instance.output))
    return message


def entry_to_pb(entry: Step | Event) -> workflows_pb2.HistoryEntry:
    """A step or an event of a run's history."""
    if isinstance(entry, Step):
        return workflows_pb2.HistoryEntry(step=step_to_pb(entry))
    return workflows_pb2.HistoryEntry(event=event_to_pb(entry))


def step_to_pb(step: Step) -> workflows_pb2.Step:
    """A step, as people see it."""
    message = workflows_pb2.Step(
        name=step.name,
        type=STEP_TYPES[step.type],
        status=STEP_STATUSES[step.status],
        attempts=step.attempts,
        next_retry_at=_optional_timestamp(step.next_retry_at),
        wake_at=_optional_timestamp(step.wake_at),
        event_type=step.event_type,
        created_at=timestamp_to_pb(step.created_at),
        updated_at=timestamp_to_pb(step.updated_at),
    )
    if step.policy is not None:
        message.timeout.CopyFrom(duration_to_pb(step.policy.timeout))
        if step.policy.retry.max_attempts is not None:
            message.max_attempts = step.policy.retry.max_attempts
    if step.result is not None:
        message.result.CopyFrom(payload_to_pb(step.result))
    if step.failure is not None:
        message.failure.CopyFrom(failure_to_pb(step.failure))
    return message


def event_to_pb(event: Event, *, payload: bool = True) -> workflows_pb2.Event:
    """An event; without its payload if that is not wanted."""
    message = workflows_pb2.Event(
        event_id=event.position,
        type=event.type,
        created_at=timestamp_to_pb(event.created_at),
        delivered_at=_optional_timestamp(event.delivered_at),
        consumed_by_step=event.consumed_by_step,
        trace=event.trace if payload else {},
    )
    if payload and event.payload is not None:
        message.payload.CopyFrom(payload_to_pb(event.payload))
    return message


def _optional_timestamp(instant: Micros | None) -> Timestamp | None:
    return None if instant is None else timestamp_to_pb(instant)
