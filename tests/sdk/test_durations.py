"""Durations and instants as people write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.durations import to_datetime, to_duration, to_seconds, to_timedelta, to_timestamp, to_words

UNITS = {
    timedelta(milliseconds=1): ["ms", "millisecond", "milliseconds"],
    timedelta(seconds=1): ["s", "sec", "second", "seconds"],
    timedelta(minutes=1): ["m", "min", "minute", "minutes"],
    timedelta(hours=1): ["h", "hour", "hours"],
    timedelta(days=1): ["d", "day", "days"],
}


@given(
    st.integers(0, 1000),
    st.sampled_from([(unit, word) for unit, words in UNITS.items() for word in words]),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from([str.lower, str.upper, str.title]),
)
def test_a_number_and_a_unit_in_any_case(number: int, unit: tuple[timedelta, str], space: str, case: Any) -> None:
    assert to_timedelta(f"{number}{space}{case(unit[1])}") == number * unit[0]


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_a_timedelta_keeps_its_microseconds(length: timedelta) -> None:
    assert to_duration(length).ToTimedelta() == to_timedelta(length) == length


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert to_timedelta(text) >= timedelta(0)


def test_numbers_are_milliseconds_and_fractions_count() -> None:
    assert to_seconds(1500) == 1.5
    assert to_timedelta("1.5 h") == timedelta(minutes=90)
    assert to_timedelta(".5s") == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    "wrong",
    ["", " ", "10", "ten seconds", "-1 s", "1 fortnight", "1 s 2", "1e3 s", -1, float("nan"), float("inf"), True],
)
def test_what_is_not_a_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        to_timedelta(wrong)


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), None, "9" * 400 + " days"])
def test_so_is_what_is_negative_of_another_type_or_beyond_all_time(wrong: Any) -> None:
    with pytest.raises(ValueError):
        to_timedelta(wrong)


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_survives_the_wire(instant: datetime) -> None:
    assert to_datetime(to_timestamp(instant)) == instant


@pytest.mark.parametrize(
    ("written", "words"),
    [("365 d", "365 days"), ("24 h", "1 day"), ("90 min", "90 minutes"), ("1.5 s", "1.5 seconds"), (0, "0 seconds")],
)
def test_a_duration_is_told_in_the_unit_that_fits(written: Any, words: str) -> None:
    assert to_words(to_timedelta(written)) == words


def test_an_instant_is_also_milliseconds_since_the_epoch() -> None:
    assert to_datetime(to_timestamp(1500)) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


@pytest.mark.parametrize("wrong", [datetime(2026, 1, 1), float("nan"), "tomorrow", 1e300, -1e17])  # noqa: DTZ001 - that is the point
def test_an_instant_without_a_zone_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        to_timestamp(wrong)
