"""Pages of lists: how many items a caller asked for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from stepwell_server.domain.errors import PageSizeInvalid
from stepwell_server.domain.traces import trace_size

DEFAULT_PAGE_SIZE = 25

PAGE_BYTES = 2 * 1024 * 1024
"""How much that callers and workers brought goes into one page."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page a caller wants. A size of 0 means the default."""

    size: int = 0
    token: str = ""

    def limit(self, maximum: int) -> int:
        """How many items to return: the default if nothing was asked for, at most the maximum."""
        if self.size < 0:
            raise PageSizeInvalid("page_size must not be negative", field="page_size", page_size=self.size)
        return min(self.size or DEFAULT_PAGE_SIZE, maximum)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items in order, and the token of the next page, empty at the end."""

    items: list[T]
    next_token: str


def fitting(found: list[T], limit: int) -> tuple[list[T], bool]:
    """As many as the page may have and a message can hold, at least one; and whether there are more."""
    size = 0
    for count, one in enumerate(found[:limit]):
        payloads = [getattr(one, name, None) for name in ("params", "output", "result", "payload")]
        size += sum(payload.size for payload in payloads if payload is not None)
        size += sum(4 * (len(name) + len(value)) for name, value in getattr(one, "labels", {}).items())
        size += trace_size(getattr(one, "trace", {}))
        failure = getattr(one, "failure", None)
        size += 0 if failure is None else 4 * (len(failure.message) + len(failure.details))
        if count and size > PAGE_BYTES:
            return found[:count], True
    return found[:limit], len(found) > limit
