"""Background loops, one file each. A loop that fails is logged and started again; it never dies silently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 5.0

log = structlog.get_logger()


async def supervised(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run the loop for ever, again after each failure, with growing pauses."""
    backoff = SHORTEST_BACKOFF
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await loop()
        except Exception:
            log.exception("loop_failed", loop=name)
        if asyncio.get_running_loop().time() - began > LONGEST_BACKOFF:
            backoff = SHORTEST_BACKOFF
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, LONGEST_BACKOFF)
