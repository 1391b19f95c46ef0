"""The clock that decides: what a reading is, and how a virtual one moves."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.values.errors import (
    ClockMovesForwardOnly,
    ClockNotVirtual,
    DurationOutOfRange,
    TimestampOutOfRange,
)
from stepwell_server.domain.values.times import DAY, LATEST, Micros

LONGEST_ADVANCE = 36_500 * DAY


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The database's two clocks at one moment. `now` decides what users see, `lease_now` is always real."""

    now: Micros
    lease_now: Micros
    virtual: bool

    def moved(self, *, by: Micros | None = None, to: Micros | None = None) -> Micros:
        """Where the clock stands after it was moved: by a duration, or to an instant."""
        if not self.virtual:
            raise ClockNotVirtual("the clock of this server is real; start it with --virtual-clock to move it")
        if by is not None and by > LONGEST_ADVANCE:
            raise DurationOutOfRange("by must be at most 36,500 days", field="by")
        target = to if to is not None else self.now + (by or 0)
        if target < self.now:
            raise ClockMovesForwardOnly("the clock is past that instant already", field="to", now=self.now)
        if target > LATEST:
            raise TimestampOutOfRange("the clock ends with the year 9999", field="by" if to is None else "to")
        return target
