"""Packing: items in as few messages as their bytes and their number allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Size: TypeAlias = Callable[[T], tuple[int, int]]
"""The bytes of an item, and as how many it counts."""

MESSAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of one message, headers and names included."""
PART_BYTES = 3 * 1024 * 1024
"""Bytes of the items of one message: more of them travel in several."""


def packed(items: Iterable[T], size: Size[T], most: int) -> Iterator[list[T]]:
    """Items in order, at most so many per message. An item that is larger than a message travels alone."""
    message: list[T] = []
    total_bytes = total = 0
    for item in items:
        its_bytes, its_count = size(item)
        if message and (total_bytes + its_bytes > PART_BYTES or total + its_count > most):
            yield message
            message, total_bytes, total = [], 0, 0
        message.append(item)
        total_bytes += its_bytes
        total += its_count
    if message:
        yield message
