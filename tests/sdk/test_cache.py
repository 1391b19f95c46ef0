"""The memory of a worker for suspended work, bounded in number and in bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.cache import Cache
from stepwell.worker.host import Memory, MemoryKey


class Shelf:
    """A cache, and what it has dropped."""

    def __init__(self, most: int = 10, most_bytes: int = 1000) -> None:
        self.cache = Cache(most, most_bytes)
        self.dropped: list[str] = []

    def keep(self, name: str, size: int = 0) -> None:
        """Put something on it."""
        work: Any = SimpleNamespace(name=name, drop=lambda: self.dropped.append(name))
        self.cache.keep(Memory(key_of(name), size), work)


def key_of(name: str) -> MemoryKey:
    return pb.HANDLER_KIND_WORKFLOW, "order", name


def test_the_oldest_goes_when_there_are_too_many() -> None:
    shelf = Shelf(most=2)
    for name in "abcd":
        shelf.keep(name)

    assert shelf.dropped == ["a", "b"]


def test_as_many_go_as_a_large_one_needs_room_for() -> None:
    shelf = Shelf(most_bytes=1000)
    for name, size in (("a", 400), ("b", 400), ("c", 100), ("d", 700)):
        shelf.keep(name, size)

    assert shelf.dropped == ["a", "b"]


def test_what_is_larger_than_all_the_room_is_not_kept() -> None:
    shelf = Shelf(most_bytes=1000)
    shelf.keep("a", 1001)

    assert shelf.dropped == ["a"]
    assert shelf.cache.take(key_of("a")) is None


def test_what_was_taken_or_cleared_takes_no_room() -> None:
    shelf = Shelf(most_bytes=1000)
    for name in "ab":
        shelf.keep(name, 1000)
        assert shelf.cache.take(key_of(name)) is not None
    shelf.keep("c", 1000)
    shelf.cache.clear()
    shelf.keep("d", 1000)

    assert shelf.dropped == ["c"]


def test_what_is_kept_again_takes_its_room_once() -> None:
    shelf = Shelf(most_bytes=1000)
    for _ in range(3):
        shelf.keep("a", 600)

    assert shelf.dropped == []
    shelf.keep("b", 400)
    assert shelf.dropped == []
