"""A process's own clock: it measures timeouts, leases and waits, and decides nothing that users see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that was asked to happen later and can be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Clock(Protocol):
    """A clock that only goes forward, in seconds, with timers."""

    def now(self) -> float:
        """Seconds since some instant in the past."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call back after `delay` seconds."""


class LoopClock:
    """The event loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        """Seconds of the loop's monotonic clock."""
        return self._loop.time()

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call back on the loop after `delay` seconds."""
        return self._loop.call_later(delay, callback, *args)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on a clock."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, _settle, over)
    try:
        await over
    finally:
        timer.cancel()


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
