"""Pages of lists: how many items a caller asked for, and what it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stepwell_server.domain.values.errors import PageSizeInvalid

DEFAULT_PAGE_SIZE = 25

PAGE_BYTES = 2 * 1024 * 1024
"""How much that callers and workers brought goes into one page."""

T = TypeVar("T")
K = TypeVar("K")


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


def fit(sizes: Sequence[int], limit: int) -> tuple[int, bool]:
    """How many of items with these sizes go into a page and into a message, at least one; and whether more are left."""
    total = 0
    for count, size in enumerate(sizes[:limit]):
        total += size
        if count and total > PAGE_BYTES:
            return count, True
    return min(len(sizes), limit), len(sizes) > limit


def in_parts(sizes: Mapping[K, int], most: int) -> Iterator[list[K]]:
    """Things in their order, as many at a time as have so many bytes together, at least one."""
    part: list[K] = []
    total = 0
    for one, size in sizes.items():
        if part and total + size > most:
            yield part
            part, total = [], 0
        part.append(one)
        total += size
    if part:
        yield part
