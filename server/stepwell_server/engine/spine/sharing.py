"""Sharing: whether several senders are at work at about the same time, so that one slows the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Sharing:
    """Remembers the last sender."""

    shared_for: float
    """Seconds for which several senders count as being at work, after one sent behind another."""
    clock: Callable[[], float] = time.monotonic
    _newest: str = ""
    _until: float = -math.inf

    @property
    def is_shared(self) -> bool:
        """Whether several senders are at work."""
        return self.clock() < self._until

    def note(self, name: str) -> None:
        """Note a message of a sender."""
        if name == self._newest:
            return
        if self._newest:
            self._until = self.clock() + self.shared_for
        self._newest = name
