"""Retry: how often and how far apart something that failed is tried again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from stepwell.durations import DurationLike, to_duration, to_seconds, to_timedelta, to_words
from stepwell.v1 import common_pb2 as pb

BackoffName: TypeAlias = Literal["constant", "linear", "exponential"]

_BACKOFFS: dict[BackoffName, pb.Backoff.ValueType] = {
    "constant": pb.BACKOFF_CONSTANT,
    "linear": pb.BACKOFF_LINEAR,
    "exponential": pb.BACKOFF_EXPONENTIAL,
}
_BACKOFF_NAMES = {number: name for name, number in _BACKOFFS.items()}
_MOST_ATTEMPTS = 1_000_000
_LONGEST_DELAY = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The one retry policy of all primitives. Fields that are left out have the server's defaults.

    `limit` counts retries after the first execution, `max_attempts` all executions: give one of them, `math.inf` for no
    maximum. `is_retryable` is asked in the worker with the error; False ends the step or the job at once.
    """

    limit: float | None = None
    max_attempts: float | None = None
    delay: DurationLike | None = None
    backoff: BackoffName | None = None
    max_delay: DurationLike | None = None
    is_retryable: Callable[[Exception], bool] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.max_attempts is not None:
            raise ValueError(
                "give limit (retries after the first execution) or max_attempts (all executions), not both"
            )
        _check_count("limit", self.limit, 0)
        _check_count("max_attempts", self.max_attempts, 1)
        if self.backoff is not None and self.backoff not in _BACKOFFS:
            raise ValueError(f"backoff is one of {', '.join(_BACKOFFS)}: {self.backoff!r}")
        if (
            self.delay is not None
            and self.max_delay is not None
            and to_seconds(self.max_delay) < to_seconds(self.delay)
        ):
            raise ValueError(f"max_delay must not be shorter than delay: {self.max_delay!r}, {self.delay!r}")
        _check_delay("delay", self.delay)
        _check_delay("max_delay", self.max_delay)

    def attempts(self) -> float | None:
        """How many executions there may be in all; None if that is left to the server."""
        return self.max_attempts if self.limit is None else self.limit + 1

    def allows(self, error: BaseException) -> bool:
        """Ask the author's own test about an error; an error in the test itself counts as no."""
        if self.is_retryable is None or not isinstance(error, Exception):
            return True
        try:
            return bool(self.is_retryable(error))
        except KeyboardInterrupt:
            raise
        except BaseException:  # a SystemExit would end the worker
            return False

    def to_policy(self) -> pb.RetryPolicy:
        """The policy for the wire; what was left out stays unset."""
        policy = pb.RetryPolicy()
        attempts = self.attempts()
        if attempts == math.inf:
            policy.unlimited = True
        elif attempts is not None:
            policy.max_attempts = int(attempts)
        if self.delay is not None:
            policy.delay.CopyFrom(to_duration(self.delay))
        if self.max_delay is not None:
            policy.max_delay.CopyFrom(to_duration(self.max_delay))
        if self.backoff is not None:
            policy.backoff = _BACKOFFS[self.backoff]
        return policy


def from_policy(policy: pb.RetryPolicy) -> Retry:
    """The policy that the wire has; what is unset there is left out."""
    attempts = math.inf if policy.unlimited else policy.max_attempts or None
    return Retry(
        max_attempts=attempts,
        delay=policy.delay.ToTimedelta() if policy.HasField("delay") else None,
        backoff=_BACKOFF_NAMES.get(policy.backoff),
        max_delay=policy.max_delay.ToTimedelta() if policy.HasField("max_delay") else None,
    )


def to_retry(value: Retry | Mapping[str, Any]) -> Retry:
    """The policy itself, or one made of a mapping with the same keys."""
    return value if isinstance(value, Retry) else Retry(**value)


def _check_delay(name: str, value: DurationLike | None) -> None:
    if value is not None and to_timedelta(value) > _LONGEST_DELAY:
        raise ValueError(f"the {name} of a retry is at most {to_words(_LONGEST_DELAY)}, not {value!r}")


def _check_count(name: str, value: float | None, least: int) -> None:
    if value is None or value == math.inf:
        return
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not is_whole or not least <= value <= _MOST_ATTEMPTS - 1 + least:
        raise ValueError(
            f"{name} is a whole number from {least} to {_MOST_ATTEMPTS - 1 + least}, or math.inf: {value!r}"
        )
