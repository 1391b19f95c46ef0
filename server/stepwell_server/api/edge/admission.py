"""Admission: bounds on calls at once and on calls a second, and the way to turn new calls away.

Principals share the global bounds, and each has at most half of them. Where there is no policy, all callers are one
principal, which may use everything.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from stepwell_server.api.edge.access import OPEN_METHODS
from stepwell_server.api.edge.calls import Call
from stepwell_server.domain.values.errors import RateLimited, ServerBusy, ShuttingDown, StepwellError, StreamLimit

QUIET = 0.05
"""Seconds without a call, after which the door is taken to be closed."""

DESERTED = 60.0
"""Seconds without a call or a stream, after which the server counts as deserted."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many there may be of each at once, and how many calls a second."""

    unary_calls: int
    waiting_calls: int
    streams: int
    streams_per_principal: int
    health_watches: int
    call_rate: float
    call_burst: int
    one_principal: bool
    """All callers are one, as there is no policy that tells them apart."""

    def share(self, limit: int) -> int:
        """How many of so many one principal may have."""
        return limit if self.one_principal else _half(limit)


class Places:
    """So many at once for all, and at most a share of them for one principal."""

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._taken: Counter[str] = Counter()
        self.total = 0

    @contextmanager
    def hold(self, name: str, refuse: Callable[[int], StepwellError]) -> Iterator[None]:
        """Hold a place in this name. Where there is none, `refuse` says so of the limit that is in the way."""
        if self.total >= self._limit:
            raise refuse(self._limit)
        if self._taken[name] >= self._share:
            raise refuse(self._share)
        self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def enter(self, name: str) -> None:
        """Take a place, whether there is one or not."""
        self.total += 1
        self._taken[name] += 1

    def leave(self, name: str) -> None:
        """Give a place back."""
        self.total -= 1
        self._taken[name] -= 1
        if not self._taken[name]:
            del self._taken[name]


class Rate:
    """So many calls a second for each principal, and a burst of them after a rest."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._rest = burst / per_second
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """When the principal can have a whole burst again; the one that has called last stands last."""

    def charge(self, name: str) -> None:
        """Count a call. Raises `RateLimited` if it comes too soon."""
        now = self._clock()
        self._forget(now)
        full_at = max(self._full_at.pop(name, now), now)
        after = full_at + 1 / self._per_second
        late = after - now - self._rest
        self._full_at[name] = full_at if late > 0 else after
        if late > 0:
            raise RateLimited(
                "the caller makes too many calls a second; send batches, or fewer calls",
                retry_after=late,
                limit=self._per_second,
            )

    def _forget(self, now: float) -> None:
        """Forget those that have rested, as they are like new ones."""
        while self._full_at and self._full_at[name := next(iter(self._full_at))] <= now:
            del self._full_at[name]


class Admission:
    """Counts the calls inside and turns away those above the limits. Health is always let in: busy is not dead."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = None if bounds.one_principal else Rate(bounds.call_rate, bounds.call_burst, clock)
        self._unary = Places(bounds.unary_calls, bounds.share(bounds.unary_calls))
        self._waiting = Places(bounds.waiting_calls, bounds.share(bounds.waiting_calls))
        self._streams = Places(bounds.streams, min(bounds.share(bounds.streams), bounds.streams_per_principal))
        self._health_watches = Places(bounds.health_watches, _half(bounds.health_watches))
        self._closed = False
        self._last_call = 0.0
        self._clock = clock
        self._left_at = -math.inf  # when the last call of any kind had ended

    @asynccontextmanager
    async def layer(self, call: Call) -> AsyncIterator[None]:
        """Hold a place for as long as the call takes."""
        if call.method in OPEN_METHODS:
            place = self._open_place
        else:
            place = self._stream_place if call.streaming else self._unary_place
        try:
            with place(call):
                yield
        finally:
            self._left_at = self._clock()

    def is_deserted(self) -> bool:
        """Whether there is no call, and was none for a while: not even one of a balancer for health."""
        inside = (self._unary, self._waiting, self._streams, self._health_watches)
        return not any(places.total for places in inside) and self._clock() - self._left_at >= DESERTED

    async def close(self, limit: float) -> None:
        """Turn new unary calls away, and return when those inside have ended and no more come, or after the limit.

        gRPC answers a call that arrives in the very moment in which its server is stopped with CANCELLED, which no
        client repeats. So it is stopped in a moment without arrivals, after callers were told to come back.
        """
        self._closed = True
        loop = asyncio.get_running_loop()
        self._last_call = began = loop.time()
        while (now := loop.time()) < began + limit:
            if not self._unary.total and not self._waiting.total and now - self._last_call >= QUIET:
                return
            await asyncio.sleep(QUIET / 5)

    @contextmanager
    def _open_place(self, call: Call) -> Iterator[None]:
        """Callers are not authenticated here, so streams are counted by the machine that they come from."""
        if not call.streaming:
            yield
            return
        machine, _, _ = call.context.peer().rpartition(":")
        with self._health_watches.hold(machine, _too_many_streams):
            yield

    @contextmanager
    def _unary_place(self, call: Call) -> Iterator[None]:
        name = call.principal.name
        self._last_call = asyncio.get_running_loop().time()
        if self._closed:
            raise ShuttingDown("the server is going away; repeat the call", retry_after=1.0)
        self._charge(name)

        @contextmanager
        def waiting_place() -> Iterator[None]:
            """A place for a call that only waits: until it goes on, others take the one that it had."""
            with self._waiting.hold(name, _too_many_waiting):
                self._unary.leave(name)
                try:
                    yield
                finally:
                    self._unary.enter(name)

        with self._unary.hold(name, _too_many_calls):
            call.waiting_place = waiting_place
            yield

    @contextmanager
    def _stream_place(self, call: Call) -> Iterator[None]:
        if self._closed:
            raise ShuttingDown("the server is going away; connect again", retry_after=1.0)
        self._charge(call.principal.name)
        with self._streams.hold(call.principal.name, _too_many_streams):
            yield

    def _charge(self, name: str) -> None:
        if self._rate is not None:
            self._rate.charge(name)


def _half(limit: int) -> int:
    return (limit + 1) // 2


def _too_many_calls(limit: int) -> StepwellError:
    return ServerBusy("too many calls at once; repeat the call", retry_after=0.1, limit=limit)


def _too_many_waiting(limit: int) -> StepwellError:
    return ServerBusy("too many calls wait at once; repeat the call", retry_after=1.0, limit=limit)


def _too_many_streams(limit: int) -> StepwellError:
    return StreamLimit("too many open streams; close one first", retry_after=1.0, limit=limit)
