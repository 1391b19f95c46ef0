"""Work that is no longer held, and goes on from memory when its task comes again."""

from __future__ import annotations

from collections import OrderedDict

from stepwell.worker.host import MemoryKey, Work


class Cache:
    """Remembers so much work. The oldest work is dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._works: OrderedDict[MemoryKey, Work] = OrderedDict()

    def keep(self, key: MemoryKey, work: Work) -> None:
        """Remember work by its handler and key."""
        self._works[key] = work
        while len(self._works) > self._most:
            self._works.popitem(last=False)[1].drop()

    def take(self, key: MemoryKey) -> Work | None:
        """Take remembered work out."""
        return self._works.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        for work in list(self._works.values()):
            work.drop()
        self._works.clear()
