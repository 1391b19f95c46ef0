"""A stream that is lost is opened again: how long to wait before that, and when it is pointless."""

from __future__ import annotations

import random

import grpc

from stepwell.errors import CallFailed

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_MOST_DOUBLINGS = 10

# What no second try can mend, if a server says so: the caller is wrong, or it is not wanted.
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


class Reconnects:
    """The tries to keep one stream open."""

    def __init__(self) -> None:
        self._was_served = False
        self._tries = 0

    def served(self) -> None:
        """A server takes part in the stream: the next pause is a short one again."""
        self._was_served = True
        self._tries = 0

    def next_pause(self) -> float:
        """Seconds to wait before the next try; all who lost the same server come back at different times."""
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._tries)
        self._tries = min(self._tries + 1, _MOST_DOUBLINGS)
        return random.uniform(0, longest)

    def are_pointless_after(self, failure: CallFailed) -> bool:
        """Whether there will never be a stream. Of one that was served only a server may say so.

        What comes without a reason may be a proxy's answer, while the servers behind it are away.
        """
        return failure.code in _FINAL_CODES and (bool(failure.reason) or not self._was_served)
