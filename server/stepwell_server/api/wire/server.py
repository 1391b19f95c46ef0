"""The description of a server: domain to protobuf."""

from __future__ import annotations

from stepwell.v1 import server_pb2
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.values.limits import Limits
from stepwell_server.engine.server import Server

_DATABASE_KINDS = {
    "sqlite": server_pb2.DATABASE_KIND_SQLITE,
    "postgresql": server_pb2.DATABASE_KIND_POSTGRESQL,
}
_DISPATCH_MODES = {
    "embedded": server_pb2.DISPATCH_MODE_EMBEDDED,
    "external": server_pb2.DISPATCH_MODE_EXTERNAL,
}


def limits_to_pb(limits: Limits) -> server_pb2.Limits:
    """Convert the limits of the server."""
    return server_pb2.Limits(
        max_message_bytes=limits.message_bytes,
        max_payload_bytes=limits.payload_bytes,
        max_payload_depth=limits.payload_depth,
        max_batch_items=limits.batch_items,
        max_steps_per_run=limits.steps_per_run,
        max_pending_events=limits.pending_events,
        max_page_size=limits.page_size,
        max_timer=convert.duration_to_pb(limits.timer),
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
        started_at=convert.timestamp_to_pb(replica.started_at),
        now=convert.timestamp_to_pb(clock.now),
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
