"""Facts about the followers of wakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.chaos.facts.fact import Fact


@dataclass(frozen=True, slots=True)
class Told(Fact):
    """A follower of wakes was told of the next one, or its stream is over. `stream` is unique per connection."""

    stream: str
    server: str
    phase: Literal["told", "over"]
    mono_ns: int
    number: int = 0
    wake_at: int | None = None
    """None: nothing waits."""
