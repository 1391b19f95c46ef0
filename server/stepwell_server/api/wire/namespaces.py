"""Namespaces: domain to protobuf and back."""

from __future__ import annotations

from stepwell.v1 import namespaces_pb2
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.namespaces import Namespace, NamespaceLimits, NamespaceSpec, Retention


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
        created_at=convert.timestamp_to_pb(namespace.created_at),
        updated_at=convert.timestamp_to_pb(namespace.updated_at),
    )


def retention_to_pb(retention: Retention) -> namespaces_pb2.Retention:
    """Retention; for ever is an unset duration."""
    return namespaces_pb2.Retention(
        complete=convert.optional_duration(retention.complete),
        errored=convert.optional_duration(retention.errored),
        terminated=convert.optional_duration(retention.terminated),
    )


def namespace_spec_from_pb(
    request: namespaces_pb2.CreateNamespaceRequest | namespaces_pb2.UpdateNamespaceRequest,
) -> NamespaceSpec:
    """Read the settings that a caller asks for."""
    kept = request.retention
    return NamespaceSpec(
        name=request.name,
        description=request.description,
        retention=Retention(
            complete=convert.duration_from_pb(kept.complete) if kept.HasField("complete") else None,
            errored=convert.duration_from_pb(kept.errored) if kept.HasField("errored") else None,
            terminated=convert.duration_from_pb(kept.terminated) if kept.HasField("terminated") else None,
        ),
        limits=NamespaceLimits(
            max_payload_bytes=request.limits.max_payload_bytes,
            max_steps_per_run=request.limits.max_steps_per_run,
            max_pending_events=request.limits.max_pending_events,
        ),
    )
