"""The limits of the server. Operators can change each value; clients read them from GetServerInfo."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.values.times import DAY, Micros

MESSAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of one message, headers and names included."""
PART_BYTES = 3 * 1024 * 1024
"""Bytes of the things in one message: more of them travel in several."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what callers may send. A namespace can lower some of them for itself."""

    message_bytes: int = MESSAGE_BYTES
    message_values: int = 250_000
    """Values of any kind in one message, however they are nested."""
    payload_bytes: int = 1024 * 1024
    payload_depth: int = 64
    batch_items: int = 100
    steps_per_run: int = 1024
    pending_events: int = 10_000
    handlers: int = 5000
    """Names in a namespace that work is addressed to."""
    page_size: int = 100
    timer: Micros = 365 * DAY
    streams_per_principal: int = 200
    outbox_bytes: int = 16 * 1024 * 1024
