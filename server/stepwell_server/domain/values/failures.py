"""Failures: what went wrong in a handler, in the words of the code that failed."""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURE_NAME = 256
FAILURE_TEXT = 4096
FAILURE_DETAILS = 16384


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, in the words of the code that failed."""

    name: str
    message: str
    non_retryable: bool = False
    details: str = ""

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return len(self.message) + len(self.details)

    def shortened(self) -> Failure:
        """The same, short enough to be stored."""
        return replace(
            self,
            name=self.name[:FAILURE_NAME] or "UNKNOWN_ERROR",
            message=self.message[:FAILURE_TEXT],
            details=self.details[:FAILURE_DETAILS],
        )
