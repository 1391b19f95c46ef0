"""Retries: how often and how far apart something that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepwell_server.domain.values.times import DAY, MINUTE, SECOND, Micros

LONGEST_DELAY: Micros = 365 * DAY
MOST_ATTEMPTS = 1_000_000
_MOST_DOUBLINGS = 60


class Backoff(StrEnum):
    """How delays grow."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many executions there may be, and how long to wait between them."""

    max_attempts: int | None = 6
    """None: as many as it takes."""
    delay: Micros = 10 * SECOND
    backoff: Backoff = Backoff.EXPONENTIAL
    max_delay: Micros | None = None

    def allows_after(self, attempts: int) -> bool:
        """Whether there may be another execution after so many."""
        return self.max_attempts is None or attempts < self.max_attempts

    def delay_after(self, attempts: int) -> Micros:
        """How long to wait after the n-th execution failed, n from 1."""
        match self.backoff:
            case Backoff.CONSTANT:
                grown = self.delay
            case Backoff.LINEAR:
                grown = self.delay * attempts
            case Backoff.EXPONENTIAL:
                grown = self.delay * 2 ** min(attempts - 1, _MOST_DOUBLINGS)
        return min(grown, LONGEST_DELAY if self.max_delay is None else self.max_delay)


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """How a step is executed."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: Micros = 10 * MINUTE
    """Longest time of one execution."""
