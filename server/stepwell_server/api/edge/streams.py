"""Streams: a peer that does not read is cut off, and a peer that loses its permission is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from google.protobuf.message import Message

from stepwell_server.api.edge.calls import Call, Context, current
from stepwell_server.domain.values.errors import SlowConsumer, StepwellError

log = structlog.get_logger()


async def write(context: Context, message: Message) -> None:
    """Send a message, once there is room for it. A peer that makes none for too long has its stream ended."""
    limit = current.get().tuning.write_timeout
    try:
        async with asyncio.timeout(limit):
            await context.write(message)
    except TimeoutError:
        raise SlowConsumer(f"nothing was read for {limit:.0f} seconds", limit=limit) from None


@asynccontextmanager
async def checked(call: Call) -> AsyncIterator[None]:
    """Ask again and again, while what is inside goes on, whether the caller may be here. A refusal ends it."""
    refusals: list[StepwellError] = []
    try:
        async with asyncio.timeout(None) as inside:
            checking = asyncio.create_task(_check(call, refusals, inside))
            try:
                yield
            finally:
                checking.cancel()
    except TimeoutError:
        if not refusals:
            raise
        raise refusals[0] from None


async def _check(call: Call, refusals: list[StepwellError], inside: asyncio.Timeout) -> None:
    while not refusals:
        await asyncio.sleep(call.tuning.policy_interval)
        try:
            await call.authorise()
        except StepwellError as refusal:
            refusals.append(refusal)
        except Exception:
            log.exception("policy_failed")
            refusals.append(call.broken())
    inside.reschedule(asyncio.get_running_loop().time())
