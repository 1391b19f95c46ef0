"""Retry: one type, two ways to count, and nothing said where nothing was said."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stepwell import Retry
from stepwell.retry import to_retry
from stepwell.v1 import common_pb2 as pb


def test_limit_counts_retries_and_max_attempts_executions() -> None:
    assert Retry(limit=5).to_policy().max_attempts == 6
    assert Retry(max_attempts=5).to_policy().max_attempts == 5


def test_infinity_has_its_own_representation() -> None:
    assert Retry(limit=math.inf).to_policy() == pb.RetryPolicy(unlimited=True)
    assert Retry(max_attempts=math.inf).attempts() == math.inf


def test_what_is_left_out_stays_unset() -> None:
    assert Retry().to_policy() == pb.RetryPolicy()
    assert Retry().attempts() is None


def test_a_dict_has_the_same_keys() -> None:
    policy = to_retry({"limit": 2, "delay": "1 s", "backoff": "linear", "max_delay": "1 m"}).to_policy()

    assert (policy.max_attempts, policy.backoff) == (3, pb.BACKOFF_LINEAR)
    assert (policy.delay.seconds, policy.max_delay.seconds) == (1, 60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 1, "max_attempts": 2},
        {"limit": -1},
        {"limit": 1.5},
        {"limit": math.nan},
        {"limit": True},
        {"max_attempts": 0},
        {"max_attempts": 1_000_001},
        {"delay": "soon"},
        {"backoff": "random"},
        {"delay": "1 minute", "max_delay": "59 seconds"},
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Retry(**wrong)


@pytest.mark.parametrize("count", [math.nan, "three", True, 1.5])
def test_a_number_of_executions_that_is_none_is_refused_by_its_name(count: Any) -> None:
    with pytest.raises(ValueError, match="limit is a whole number"):
        Retry(limit=count)
