"""Named places where a test can make a server stumble: before and after every commit.

STEPWELL_FAILPOINT=NAME:HIT ends the process without a word when it passes NAME for the HIT-th time, as a crash would.
Names are "before-commit" and "after-commit", alone or with the label of the transaction: "after-commit/group".
In-process tests `install` a function instead.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Failpoint: TypeAlias = Callable[[str], None]

BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"

_CRASHED = 42


class Failpoints:
    """The action at each place: none, unless a test sets one."""

    def __init__(self, crash_at: str = "") -> None:
        self._installed: Failpoint | None = _crash(crash_at) if crash_at else None

    def reach(self, point: str, label: str) -> None:
        """Run the actions for this place, which has a short and a long name."""
        if self._installed is not None:
            self._installed(point)
            self._installed(f"{point}/{label}")

    @contextmanager
    def install(self, failpoint: Failpoint) -> Iterator[None]:
        """Call the function at every place; an error that it raises is an error of that place."""
        before, self._installed = self._installed, failpoint
        try:
            yield
        finally:
            self._installed = before


def _crash(crash_at: str) -> Failpoint:
    name, _, hit = crash_at.rpartition(":")
    hits: Counter[str] = Counter()

    def crash(point: str) -> None:
        hits[point] += 1
        if point == name and hits[point] == int(hit):
            os._exit(_CRASHED)

    return crash
