"""Writing to streams: a peer that does not read is cut off."""

from __future__ import annotations

import asyncio

from google.protobuf.message import Message

from stepwell_server.api.calls import Context
from stepwell_server.domain.errors import SlowConsumer

WRITE_LIMIT = 10.0
"""Seconds for a peer to read what was sent."""


async def write(context: Context, message: Message) -> None:
    """Send a message, once there is room for it. A peer that makes none for too long has its stream ended."""
    try:
        async with asyncio.timeout(WRITE_LIMIT):
            await context.write(message)
    except TimeoutError:
        raise SlowConsumer(f"nothing was read for {WRITE_LIMIT:.0f} seconds", limit=WRITE_LIMIT) from None
