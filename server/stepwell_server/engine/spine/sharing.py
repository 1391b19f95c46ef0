"""Sharing: whether several send at about the same time, so that each feels what another one does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

SHARED_FOR = 0.1
"""Seconds after another one has sent, for which several are taken to do so."""


@dataclass(slots=True)
class Sharing:
    """Remembers who sent last."""

    clock: Callable[[], float] = time.monotonic
    _newest: str = ""
    _until: float = -math.inf

    @property
    def is_shared(self) -> bool:
        """Whether several send."""
        return self.clock() < self._until

    def note(self, name: str) -> None:
        """Somebody sends, known by a name."""
        if name == self._newest:
            return
        if self._newest:
            self._until = self.clock() + SHARED_FOR
        self._newest = name
