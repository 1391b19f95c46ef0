"""Executions that are under way, as their task's row keeps them: of a run's steps, or of a job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from stepwell_server.domain.values.retry import Backoff, RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import Micros


@dataclass(frozen=True, slots=True)
class OpenStep:
    """An execution that is under way, as far as is known."""

    name: str
    attempt: int
    ends_at: Micros
    policy: StepPolicy


def dump_open(steps: Iterable[OpenStep]) -> str:
    """Open executions as the task's row keeps them."""
    rows = [(one.name, one.attempt, one.ends_at, one.policy.timeout, *_retry_row(one.policy.retry)) for one in steps]
    return json.dumps(rows, separators=(",", ":")) if rows else ""


def _retry_row(retry: RetryPolicy) -> tuple[int | str | None, ...]:
    return retry.max_attempts, retry.delay, retry.backoff, retry.max_delay


@lru_cache(64)  # several parts of one decision ask for the same
def load_open(text: str) -> tuple[OpenStep, ...]:
    """Open executions from the task's row."""
    if not text:
        return ()
    return tuple(
        OpenStep(name, attempt, ends_at, StepPolicy(RetryPolicy(most, delay, Backoff(backoff), max_delay), timeout))
        for name, attempt, ends_at, timeout, most, delay, backoff, max_delay in json.loads(text)
    )
