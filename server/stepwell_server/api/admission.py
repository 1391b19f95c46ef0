"""How many calls are let in at once, and how the door is closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from stepwell_server.api.access import OPEN_METHODS
from stepwell_server.api.calls import Call
from stepwell_server.domain.errors import ServerBusy, ShuttingDown, StreamLimit

QUIET = 0.05
"""Seconds without a call, after which the door is taken to be closed."""


class Admission:
    """Counts the calls inside and turns away those above the limits. Health is always let in: busy is not dead."""

    def __init__(self, unary_limit: int, waiting_limit: int, streams_per_principal: int) -> None:
        self._unary_limit = unary_limit
        self._waiting_limit = waiting_limit
        self._streams_per_principal = streams_per_principal
        self._unary = 0
        self._waiting = 0
        self._streams: Counter[str] = Counter()
        self._closed = False
        self._last_call = 0.0

    @asynccontextmanager
    async def layer(self, call: Call) -> AsyncIterator[None]:
        """Hold a place for as long as the call takes."""
        with self._stream_place(call) if call.streaming else self._unary_place(call):
            yield

    async def close(self, limit: float) -> None:
        """Turn new unary calls away, and return when those inside have ended and no more come, or after the limit.

        gRPC answers a call that arrives in the very moment in which its server is stopped with CANCELLED, which nobody
        retries. So it must be stopped in a moment without arrivals, and callers who were told to come back make one.
        """
        self._closed = True
        loop = asyncio.get_running_loop()
        self._last_call = began = loop.time()
        while (now := loop.time()) < began + limit:
            if not self._unary and not self._waiting and now - self._last_call >= QUIET:
                return
            await asyncio.sleep(QUIET / 5)

    @contextmanager
    def _unary_place(self, call: Call) -> Iterator[None]:
        if call.method in OPEN_METHODS:
            yield
            return
        self._last_call = asyncio.get_running_loop().time()
        if self._closed:
            raise ShuttingDown("the server is going away; repeat the call", retry_after=1.0)
        if self._unary >= self._unary_limit:
            raise ServerBusy("too many calls at once", retry_after=0.1, limit=self._unary_limit)
        self._unary += 1
        call.waiting = self._waiting_place
        try:
            yield
        finally:
            self._unary -= 1

    @contextmanager
    def _waiting_place(self) -> Iterator[None]:
        """A place for a call that only waits: until it goes on, others take the one that it had."""
        if self._waiting >= self._waiting_limit:
            raise ServerBusy("too many calls wait at once", retry_after=1.0, limit=self._waiting_limit)
        self._waiting += 1
        self._unary -= 1
        try:
            yield
        finally:
            self._unary += 1
            self._waiting -= 1

    @contextmanager
    def _stream_place(self, call: Call) -> Iterator[None]:
        if call.method in OPEN_METHODS:
            yield
            return
        if self._closed:
            raise ShuttingDown("the server is going away; connect again", retry_after=1.0)
        name = call.principal.name
        if self._streams[name] >= self._streams_per_principal:
            limit = self._streams_per_principal
            raise StreamLimit("too many open streams", retry_after=1.0, limit=limit)
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]
