"""The connection to a server: keepalive, balancing and retries as every SDK of Stepwell sets them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from stepwell.errors import PayloadInvalid, retry_delay_of
from stepwell.packing import MESSAGE_BYTES
from stepwell.tuning import DEFAULT, Tuning

# A call that ended so may have been executed: it is repeated under its request_id, or only reads. CANCELLED is what
# calls hear that reach a server as it stops; one that the caller cancels is not repeated.
_REPEATED_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without this a frozen server is noticed after a minute, whatever the keepalive timeout says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # By default the pause between two attempts to connect grows to two minutes, and one attempt may take 20 seconds: a
    # server that is back would find no workers, and calls that wait for it would reach their deadline.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # which is the time that one attempt may take
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
]


def open_channel(
    address: str,
    *,
    tls: bool = False,
    tls_ca: Path | None = None,
    patience: float | None = None,
    tuning: Tuning = DEFAULT,
) -> aio.Channel:
    """A channel to HOST:PORT, or to every address behind `dns:///HOST:PORT`.

    Plaintext unless `tls` is set or `tls_ca` names a PEM file of the authorities to trust. Mutating calls must carry a
    request_id: the channel repeats unary calls that end with UNAVAILABLE, that the server cut off, or that it is too
    busy for, until their own deadline or for `patience` seconds. Streams are not repeated.
    """
    repeats = _Repeats(patience, tuning)
    if not tls and tls_ca is None:
        repeats.channel = aio.insecure_channel(address, options=_OPTIONS, interceptors=[repeats])
    else:
        credentials = grpc.ssl_channel_credentials(None if tls_ca is None else tls_ca.read_bytes())
        repeats.channel = aio.secure_channel(address, credentials, options=_OPTIONS, interceptors=[repeats])
    return repeats.channel


class _Repeats(aio.UnaryUnaryClientInterceptor):
    """Repeats unary calls that may go through the next time. gRPC's own retries end after five tries."""

    channel: aio.Channel

    def __init__(self, patience: float | None, tuning: Tuning) -> None:
        self._tuning = tuning
        self._patience = math.inf if patience is None else patience

    async def intercept_unary_unary(
        self,
        continuation: Callable[[aio.ClientCallDetails, Any], Awaitable[Any]],
        details: aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        """Make the call, and again after a pause, while the time allows it. Answers with the last that tells why."""
        if (size := request.ByteSize()) > MESSAGE_BYTES:
            raise PayloadInvalid(f"a call of {size} bytes; at most {MESSAGE_BYTES} are sent", "PAYLOAD_TOO_LARGE")
        clock = asyncio.get_running_loop().time
        began = clock()
        seconds = math.inf if details.timeout is None else details.timeout
        failed = None
        for pause in self._tuning.pauses():
            left = None if seconds == math.inf else began + seconds - clock()
            # Later tries wait for a server, so that they are made as soon as there is one.
            waits = details.wait_for_ready or (failed is not None and self._patience == math.inf) or None
            bounded = details._replace(timeout=left, wait_for_ready=waits)  # type: ignore[attr-defined]
            call = await continuation(bounded, request)
            asked = await _asked_pause(call)
            if asked is None or clock() + asked + pause - began >= min(seconds, self._patience):
                break
            failed = call
            await asyncio.sleep(asked + pause)
        return call if failed is None or await self._is_answer(call) else failed

    async def _is_answer(self, call: Any) -> bool:
        """Whether the end of a call is about what it asked for, and not that it has waited for a server in vain."""
        is_late = await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return not is_late or self.channel.get_state() is grpc.ChannelConnectivity.READY


async def _asked_pause(call: Any) -> float | None:
    """Seconds that a server wants to be left alone before the next try; None if there is to be none."""
    try:
        code = await call.code()
    except asyncio.CancelledError:
        call.cancel()
        raise
    if code in _REPEATED_CODES:
        return 0.0
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return retry_delay_of(await call.trailing_metadata())
    return None
