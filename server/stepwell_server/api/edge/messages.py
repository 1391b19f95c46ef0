"""Messages: the one message of a unary call is read after the call was let in.

gRPC would read it before anything is known of the caller. Then headers without a message would hold a place without
end, and unfinished messages would fill the memory.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

from grpc import aio

from stepwell_server.api.edge.access import OPEN_METHODS
from stepwell_server.api.edge.calls import Call, Context
from stepwell_server.domain.values.errors import MalformedRequest, ServerDeadline

OPEN_DEADLINE = 2.0
"""Seconds for the message of a caller that is not authenticated."""
LEAVING = 0.1
"""Seconds within which the cancellation of a caller that has left follows the end of what it sent."""


class Messages:
    """Reads messages, each within so many seconds."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, call: Call) -> bytes:
        """Read the message of the call, which must have exactly one.

        For callers that are not authenticated, one message of a connection is read at a time, and others wait. gRPC
        makes room for a whole message once it is read, and only for a window of it before.
        """
        is_open = call.method in OPEN_METHODS
        limit = min(self._deadline, OPEN_DEADLINE) if is_open else self._deadline
        turn = self._turns.setdefault(call.context.peer(), asyncio.Lock()) if is_open else nullcontext()
        try:
            async with asyncio.timeout(limit), turn:
                return await _only(call.context)
        except TimeoutError:
            late = f"the message of the call did not come within {limit:g} seconds"
            raise ServerDeadline(late, limit=limit) from None


async def _only(context: Context) -> bytes:
    message: Any = await context.read()
    if message is aio.EOF:
        await asyncio.sleep(LEAVING)
        raise MalformedRequest("the call came without a message")
    if await context.read() is not aio.EOF:
        raise MalformedRequest("the call has one message, and another one came")
    return bytes(message)
