"""How a virtual clock moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.clock import LONGEST_ADVANCE, ClockReading
from stepwell_server.domain.values.errors import (
    ClockMovesForwardOnly,
    ClockNotVirtual,
    DurationOutOfRange,
    TimestampOutOfRange,
)
from stepwell_server.domain.values.times import LATEST

instants = st.integers(0, LATEST)


def virtual(now: int) -> ClockReading:
    return ClockReading(now=now, lease_now=0, virtual=True)


@given(instants, instants)
def test_a_clock_goes_to_any_later_instant_and_to_no_earlier_one(now: int, target: int) -> None:
    if target >= now:
        assert virtual(now).moved(to=target) == target
        if target - now <= LONGEST_ADVANCE:
            assert virtual(now).moved(by=target - now) == target
    else:
        with pytest.raises(ClockMovesForwardOnly):
            virtual(now).moved(to=target)


def test_one_advance_is_a_hundred_years_at_most() -> None:
    with pytest.raises(DurationOutOfRange):
        virtual(0).moved(by=LONGEST_ADVANCE + 1)


def test_a_clock_ends_with_the_year_9999() -> None:
    with pytest.raises(TimestampOutOfRange):
        virtual(LATEST).moved(by=1)


def test_a_real_clock_cannot_be_moved() -> None:
    with pytest.raises(ClockNotVirtual):
        ClockReading(now=0, lease_now=0, virtual=False).moved(by=1)
