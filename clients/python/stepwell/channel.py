"""The connection to a server: keepalive, balancing and retries as every SDK of Stepwell sets them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
from grpc import aio

MESSAGE_BYTES = 4 * 1024 * 1024

_TRIES = 5
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2
_PAUSE_FACTOR = 3
_JITTER = 0.2  # gRPC's own

_SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            # A call that ended so may have been executed: it is repeated under its request_id, or only reads.
            # CANCELLED is what calls hear that reach a server as it stops; what the caller cancels is not repeated.
            "retryPolicy": {
                "maxAttempts": _TRIES,
                "initialBackoff": f"{_FIRST_PAUSE}s",
                "maxBackoff": f"{_LONGEST_PAUSE}s",
                "backoffMultiplier": _PAUSE_FACTOR,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
}

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without this a frozen server is noticed after a minute, whatever the keepalive timeout says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # By default the pause between two attempts to connect grows to two minutes, and one attempt may take 20 seconds: a
    # server that is back would find no workers. Leases end meanwhile.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 1),
    ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
]


def open_channel(address: str, *, tls: bool = False, tls_ca: Path | None = None) -> aio.Channel:
    """A channel to HOST:PORT, or to every address behind `dns:///HOST:PORT`.

    Plaintext unless `tls` is set or `tls_ca` names a PEM file of the authorities to trust. Mutating calls must carry a
    request_id: the channel repeats calls that end with UNAVAILABLE or that the server cut off.
    """
    if not tls and tls_ca is None:
        return aio.insecure_channel(address, options=_OPTIONS)
    authorities = None if tls_ca is None else tls_ca.read_bytes()
    return aio.secure_channel(address, grpc.ssl_channel_credentials(authorities), options=_OPTIONS)


def pauses() -> Iterator[float]:
    """Seconds before each further try of what was UNAVAILABLE, as the channel makes them between tries of a call."""
    for tries in range(_TRIES - 1):
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * _PAUSE_FACTOR**tries)
        yield pause * random.uniform(1 - _JITTER, 1 + _JITTER)
