"""Breakers: a target that is broken is left alone for a while, so that its deliveries take no places from others."""

from __future__ import annotations

from dataclasses import dataclass

FAILURES = 5
"""Outages in a row that open a breaker."""
REST = 30.0
"""Seconds that it stays open. Then one delivery shows whether the target is back."""


@dataclass(slots=True)
class Breaker:
    """The breaker of one target: closed, open, or half-open with one delivery under way. Times are of the process."""

    _outages: int = 0
    """In a row."""
    _rests_until: float = 0.0
    _under_way: int = 0

    def admits(self, now: float) -> bool:
        """Whether a delivery may begin now: while the breaker is not closed, one at a time and after the rest."""
        return self._outages < FAILURES or (now >= self._rests_until and not self._under_way)

    def begin(self) -> None:
        """A delivery begins."""
        self._under_way += 1

    def end(self) -> None:
        """A delivery has ended, whatever became of it."""
        self._under_way -= 1

    def note(self, now: float, *, is_outage: bool) -> bool:
        """Learn from a delivery. Returns whether the target is to rest from now on."""
        if not is_outage:
            self._outages = 0
            return False
        self._outages += 1
        begins = self._outages >= FAILURES and now >= self._rests_until
        if begins:
            self._rests_until = now + REST
        return begins
