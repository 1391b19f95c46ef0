"""Durations as people write them: one grammar for every option of the SDK.

A number is milliseconds; text is a number and a unit, such as "10 seconds", "5m", "1.5 h" or "1 day".
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

DurationLike: TypeAlias = int | float | str | timedelta
InstantLike: TypeAlias = int | float | datetime

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_ONE_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_timedelta(value: DurationLike) -> timedelta:
    """The duration that a user wrote. ValueError if it is negative, not finite or not in the grammar."""
    if isinstance(value, str):
        return _from_milliseconds(_milliseconds_of(value), value)
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ValueError(f"a duration cannot be negative: {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'a duration is a number of milliseconds, a timedelta or text such as "10 seconds": {value!r}')
    return _from_milliseconds(value, value)


def to_seconds(value: DurationLike) -> float:
    """The same in seconds, for timers."""
    return to_timedelta(value).total_seconds()


def to_duration(value: DurationLike) -> Duration:
    """The same for the wire."""
    seconds, microseconds = divmod(to_timedelta(value) // _ONE_MICROSECOND, 1_000_000)
    return Duration(seconds=seconds, nanos=microseconds * 1_000)


def to_words(value: timedelta) -> str:
    """A duration for people, in the largest unit that it is a whole number of."""
    for unit in ("day", "hour", "minute"):
        count, rest = divmod(value, timedelta(**{f"{unit}s": 1}))
        if count and not rest:
            return f"{count} {unit}{'s' * (count > 1)}"
    return f"{value.total_seconds():g} seconds"


def to_timestamp(value: InstantLike) -> Timestamp:
    """An instant for the wire, from a datetime with a time zone or milliseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"an instant needs a time zone, such as datetime(..., tzinfo=UTC): {value!r}")
        since_epoch = value - _EPOCH
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"an instant is a datetime or milliseconds since the epoch: {value!r}")
    else:
        since_epoch = _since_epoch(value)
    seconds, microseconds = divmod(since_epoch // _ONE_MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=microseconds * 1_000)


def to_datetime(stamp: Timestamp) -> datetime:
    """An instant from the wire, in UTC."""
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1_000)


def _since_epoch(milliseconds: float) -> timedelta:
    try:
        since_epoch = timedelta(milliseconds=milliseconds)
        _EPOCH + since_epoch
    except OverflowError:
        raise ValueError(f"an instant lies in the years 1 to 9999: {milliseconds!r} milliseconds do not") from None
    return since_epoch


def _milliseconds_of(text: str) -> float:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f'a duration is a number and a unit, such as "10 seconds": {text!r}')
    factor = _UNITS.get(match[2].lower())
    if factor is None:
        raise ValueError(f"unknown unit {match[2]!r} in the duration {text!r}: use ms, s, m, h or d")
    return float(match[1]) * factor


def _from_milliseconds(milliseconds: float, written: object) -> timedelta:
    if not math.isfinite(milliseconds) or milliseconds < 0:
        raise ValueError(f"a duration must be finite and not negative: {written!r}")
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise ValueError(f"a duration of at most 365 days is meant, not {written!r}") from None
