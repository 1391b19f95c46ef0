"""Work that is no longer held, and goes on from memory when its task comes again."""

from __future__ import annotations

from collections import OrderedDict

from stepwell.worker.host import Memory, MemoryKey, Work


class Cache:
    """Remembers so much work, of so many bytes together. The oldest work is dropped first."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._works: OrderedDict[MemoryKey, tuple[Work, int]] = OrderedDict()

    def keep(self, memory: Memory, work: Work) -> None:
        """Remember work by its handler and key."""
        self.take(memory.key)
        self._works[memory.key] = work, memory.bytes
        self._bytes += memory.bytes
        while len(self._works) > self._most or self._bytes > self._most_bytes:
            oldest = self.take(next(iter(self._works)))
            assert oldest is not None
            oldest.drop()

    def take(self, key: MemoryKey) -> Work | None:
        """Take remembered work out."""
        work, its_bytes = self._works.pop(key, (None, 0))
        self._bytes -= its_bytes
        return work

    def clear(self) -> None:
        """Drop everything."""
        for work, _ in list(self._works.values()):
            work.drop()
        self._works.clear()
        self._bytes = 0
