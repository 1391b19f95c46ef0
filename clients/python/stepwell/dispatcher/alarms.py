"""Alarms: something that calls back at a time, of which there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stepwell.clocks import Clock, Timer


class Alarm(Protocol):
    """One alarm, which others may set as well. Times are those of the dispatcher's clock.

    Its owner calls `AlarmDispatcher.ring` when it goes off, also if another process set it. Then it is no longer set.
    """

    async def get(self) -> float | None:
        """When it goes off; None if it is not set."""

    async def set(self, at: float) -> None:
        """Let it go off then, and not when it was to go off before."""

    async def clear(self) -> None:
        """Do not let it go off."""


class LoopAlarm:
    """An alarm in memory: a timer of the clock."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at: float | None = None
        self._timer: Timer | None = None

    async def get(self) -> float | None:
        """When it goes off; None if it is not set."""
        return self._at

    async def set(self, at: float) -> None:
        """Let it go off then."""
        await self.clear()
        self._at = at
        self._timer = self._clock.call_later(max(0.0, at - self._clock.now()), self._go_off)

    async def clear(self) -> None:
        """Do not let it go off."""
        if self._timer is not None:
            self._timer.cancel()
        self._at = self._timer = None

    def _go_off(self) -> None:
        self._at = self._timer = None
        self._ring()
