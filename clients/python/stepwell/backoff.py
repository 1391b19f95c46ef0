"""Backoff: how long to wait between tries, and after which failures a stream is not tried again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc

from stepwell.errors import CallFailed

# No second try mends these if a server says so: the caller is wrong, or not wanted.
_FINAL_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Backoff:
    """Pauses that grow from the first to the longest, each drawn between two shares of its length."""

    def __init__(
        self, first: float, longest: float, *, factor: float = 2, shares: tuple[float, float] = (1, 1)
    ) -> None:
        self._first = min(first, longest)
        self._longest = longest
        self._factor = factor
        self._shares = shares
        self._next = self._first

    def next_pause(self) -> float:
        """Seconds to wait before the next try."""
        pause, self._next = self._next, min(self._longest, self._next * self._factor)
        return pause * random.uniform(*self._shares)

    def reset(self) -> None:
        """A try has succeeded: the next pause is the first again."""
        self._next = self._first


def pauses() -> Iterator[float]:
    """Seconds before each further try of a call, for as long as there is time for one."""
    backoff = Backoff(0.1, 2.0, factor=3, shares=(0.8, 1.2))
    while True:
        yield backoff.next_pause()


class Reconnects:
    """The tries to keep one stream open."""

    def __init__(self) -> None:
        self._was_served = False
        # Any share, so that all who lost the same server come back at different times.
        self._backoff = Backoff(0.1, 5.0, shares=(0, 1))

    def served(self) -> None:
        """A server takes part in the stream: the next pause is a short one again."""
        self._was_served = True
        self._backoff.reset()

    def next_pause(self) -> float:
        """Seconds to wait before the next try."""
        return self._backoff.next_pause()

    def are_pointless_after(self, failure: CallFailed) -> bool:
        """Whether there will never be a stream. Of one that was served only a server may say so.

        A failure without a reason may be a proxy's answer, while the servers behind it are away.
        """
        return failure.code in _FINAL_CODES and (bool(failure.reason) or not self._was_served)
