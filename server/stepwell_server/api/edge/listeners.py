"""The API's listener: the gRPC server, its options and its services."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from stepwell.v1 import (
    clock_pb2_grpc,
    dispatchers_pb2_grpc,
    hooks_pb2_grpc,
    namespaces_pb2_grpc,
    server_pb2_grpc,
    transactions_pb2_grpc,
    workers_pb2_grpc,
    workflows_pb2_grpc,
)
from stepwell_server.api.clock import ClockServicer
from stepwell_server.api.dispatchers import DispatcherServicer
from stepwell_server.api.edge.access import METHODS
from stepwell_server.api.edge.health import Health
from stepwell_server.api.edge.interceptors import Pipeline
from stepwell_server.api.hooks import HookServicer
from stepwell_server.api.namespaces import NamespaceServicer
from stepwell_server.api.server import ServerServicer
from stepwell_server.api.transactions import TransactionServicer
from stepwell_server.api.workers import WorkerServicer
from stepwell_server.api.workflows import WorkflowServicer
from stepwell_server.domain.values.limits import MESSAGE_BYTES

METADATA_BYTES = 8192
CONCURRENT_RPCS = 12_000
STREAM_WINDOW = 16 * 1024
CONCURRENT_STREAMS = 512
"""Streams of one connection. If the client reads none of them, their windows take less than 64 MiB."""

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Equal, because between the soft and the hard limit gRPC refuses at random.
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    # Bytes that a stream may hold unread. Without these, gRPC widens the windows of a fast peer up to 1 GiB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", STREAM_WINDOW),
    ("grpc.max_concurrent_streams", CONCURRENT_STREAMS),
    # A frozen client is noticed after 8 + 5 seconds. It takes the ping timeout: the keepalive timeout alone, without
    # it, was seen to take 70 seconds.
    ("grpc.keepalive_time_ms", 8_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_connection_age_ms", 30 * 60_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    ("grpc.max_connection_idle_ms", 10 * 60_000),
    # Off, so that a second server on the same port fails loudly instead of taking half the calls.
    ("grpc.so_reuseport", 0),
]


class CannotListen(Exception):
    """The address cannot be had."""


@dataclass(frozen=True, slots=True)
class Servicers:
    """The services that this server implements."""

    workflows: WorkflowServicer
    workers: WorkerServicer
    namespaces: NamespaceServicer
    clock: ClockServicer
    server: ServerServicer
    dispatchers: DispatcherServicer
    hooks: HookServicer
    transactions: TransactionServicer


def open_server(pipeline: Pipeline, handshake_timeout: float) -> aio.Server:
    """A gRPC server without services. A pipeline belongs to one server: it remembers that server's methods."""
    options = [*OPTIONS, ("grpc.server_handshake_timeout_ms", round(handshake_timeout * 1000))]
    return aio.server(interceptors=[pipeline], options=options, maximum_concurrent_rpcs=CONCURRENT_RPCS)


def register_api(server: aio.Server, health: Health, servicers: Servicers, *, with_reflection: bool) -> None:
    """Give the server every service of the contract."""
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    workflows_pb2_grpc.add_WorkflowServiceServicer_to_server(servicers.workflows, server)
    workers_pb2_grpc.add_WorkerServiceServicer_to_server(servicers.workers, server)
    namespaces_pb2_grpc.add_NamespaceServiceServicer_to_server(servicers.namespaces, server)
    clock_pb2_grpc.add_ClockServiceServicer_to_server(servicers.clock, server)
    server_pb2_grpc.add_ServerServiceServicer_to_server(servicers.server, server)
    hooks_pb2_grpc.add_HookServiceServicer_to_server(servicers.hooks, server)
    transactions_pb2_grpc.add_TransactionServiceServicer_to_server(servicers.transactions, server)
    dispatchers_pb2_grpc.add_DispatcherServiceServicer_to_server(servicers.dispatchers, server)
    if with_reflection:
        reflection.enable_server_reflection(service_names(), server)


def register_health(server: aio.Server, health: Health) -> None:
    """Give the server health and nothing else, for the ops listener."""
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)


def check_free(host: str, port: int) -> None:
    """Refuse an address that is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from None


def bind(server: aio.Server, host: str, port: int, tls: tuple[Path, Path] | None) -> str:
    """Bind the server and return the address it got."""
    bracketed = f"[{host}]" if ":" in host else host
    address = f"{bracketed}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _reloading_credentials(*tls))
    except RuntimeError:
        why = "it is taken" if tls is None else "it is taken, or the certificate and key do not fit"
        raise CannotListen(f"cannot listen on {address}: {why}") from None
    return f"{bracketed}:{bound}"


def service_names() -> list[str]:
    """Every service, as reflection and the README's grpcurl session name them."""
    ours = {method.split("/")[1] for method in METHODS if method.startswith("/stepwell.")}
    return sorted(ours | {"grpc.health.v1.Health", reflection.SERVICE_NAME})


def _reloading_credentials(cert: Path, key: Path) -> grpc.ServerCredentials:
    """TLS from two files that are read again when they change: a certificate is renewed without a restart."""
    seen: tuple[int, int] | None = None

    def read() -> Any:  # grpc takes None for "as before", which its type stubs do not know
        nonlocal seen
        state = (cert.stat().st_mtime_ns, key.stat().st_mtime_ns)
        if state == seen:
            return None
        configuration = grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())])
        seen = state
        return configuration

    return grpc.dynamic_ssl_server_credentials(read(), read, require_client_authentication=False)
