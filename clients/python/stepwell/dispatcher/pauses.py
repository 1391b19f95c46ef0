"""Pauses: what is due and could not be handed out is left alone for a while, so that no dispatcher spins."""

from __future__ import annotations

from stepwell.backoff import Backoff
from stepwell.dispatcher.processors import NextWake


class Pauses:
    """After a pass that handled nothing the `first` pause, doubling to the `longest`, until the wake's number grows."""

    def __init__(self, first: float, longest: float) -> None:
        self._backoff = Backoff(first, longest)
        self._empty_passes = 0
        self._until = 0.0
        self._number: int | None = None

    def passed(self, count: int, at: float) -> None:
        """A pass has handled so many."""
        if count:
            self._end()
            return
        self._until = at + self._backoff.next_pause()
        self._empty_passes += 1

    def failed(self, now: float) -> float:
        """It is not known when the next pass is due: when to try."""
        if self._until <= now:
            self.passed(0, now)
        return self._until

    def heed(self, wake: NextWake) -> None:
        """End the pause if something has changed."""
        if self._number is not None and wake.number > self._number:
            self._end()
        self._number = max(wake.number, self._number or 0)

    def until(self, wake: NextWake) -> float:
        """When a pass for this wake may begin."""
        # The last one was empty because it was a moment too early: that is no reason to be late now.
        is_early = self._empty_passes == 1 and not wake.is_due
        return 0.0 if is_early else self._until

    def _end(self) -> None:
        self._backoff.reset()
        self._empty_passes = 0
        self._until = 0.0
