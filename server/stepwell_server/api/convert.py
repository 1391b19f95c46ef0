"""Domain to protobuf and back: total functions, no decisions."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import namespaces_pb2, server_pb2
from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.limits import Limits
from stepwell_server.domain.namespaces import Namespace, NamespaceLimits, NamespaceSpec, Retention
from stepwell_server.domain.times import SECOND, Micros
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
