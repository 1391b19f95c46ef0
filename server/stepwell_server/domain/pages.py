"""Pages of lists: how many items a caller asked for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from stepwell_server.domain.errors import PageSizeInvalid

DEFAULT_PAGE_SIZE = 25

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
