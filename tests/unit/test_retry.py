"""Retries: how many, and how far apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.values.retry import LONGEST_DELAY, Backoff, RetryPolicy
from stepwell_server.domain.values.times import DAY, SECOND

policies = st.builds(
    RetryPolicy,
    max_attempts=st.none() | st.integers(1, 1000),
    delay=st.integers(0, LONGEST_DELAY),
    backoff=st.sampled_from(Backoff),
    max_delay=st.none() | st.integers(0, LONGEST_DELAY),
)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff.CONSTANT, [10, 10, 10, 10]),
        (Backoff.LINEAR, [10, 20, 30, 40]),
        (Backoff.EXPONENTIAL, [10, 20, 40, 80]),
    ],
)
def test_delays_grow_as_their_backoff_says(backoff: Backoff, delays: list[int]) -> None:
    policy = RetryPolicy(delay=10 * SECOND, backoff=backoff)

    assert [policy.delay_after(attempts) for attempts in (1, 2, 3, 4)] == [delay * SECOND for delay in delays]


def test_the_default_is_five_retries() -> None:
    policy = RetryPolicy()

    assert [policy.allows_after(attempts) for attempts in (0, 1, 5, 6, 7)] == [True, True, True, False, False]


@pytest.mark.parametrize(("limit", "executions"), [(0, 1), (1, 2), (5, 6)])
def test_there_are_as_many_executions_as_retries_and_one(limit: int, executions: int) -> None:
    policy = RetryPolicy(max_attempts=limit + 1)
    attempts = 1
    while policy.allows_after(attempts):
        attempts += 1

    assert attempts == executions


def test_without_a_maximum_there_is_always_another() -> None:
    assert RetryPolicy(max_attempts=None).allows_after(10**9)


@given(policies, st.integers(1, 10**6))
def test_no_delay_is_negative_or_longer_than_it_may_be(policy: RetryPolicy, attempts: int) -> None:
    longest = LONGEST_DELAY if policy.max_delay is None else policy.max_delay

    assert 0 <= policy.delay_after(attempts) <= longest


@given(policies, st.integers(1, 1000))
def test_delays_never_shrink(policy: RetryPolicy, attempts: int) -> None:
    assert policy.delay_after(attempts) <= policy.delay_after(attempts + 1)


def test_a_delay_of_a_year_does_not_grow() -> None:
    assert RetryPolicy(delay=365 * DAY).delay_after(10**6) == 365 * DAY
