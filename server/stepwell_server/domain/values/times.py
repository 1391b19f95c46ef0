"""Time as the domain sees it: whole microseconds, of an instant since the epoch or of a duration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Micros: TypeAlias = int

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR

LONGEST_WAIT: Micros = 60 * SECOND
"""How long a unary call can ask to wait."""

LATEST: Micros = 253_402_300_800 * SECOND - 1  # the last microsecond of the year 9999
"""No instant is later than this: what protobuf's Timestamp and people's calendars can hold."""


def to_rfc3339(instant: Micros) -> str:
    """The instant as text, with all its digits."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=instant)).isoformat().replace("+00:00", "Z")


def to_micros(duration: timedelta) -> Micros:
    """The duration in whole microseconds."""
    return duration // timedelta(microseconds=1)
