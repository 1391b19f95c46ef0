"""The hooks of a run, drawn from its seed: which arrive when, and which are to be executed later."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tests.chaos.workload.load import Load

NOTE = "note"
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Hooks(Load):
    """Hooks, half of them to be executed later."""

    primitive: ClassVar[str] = "hooks"
    handlers: ClassVar[tuple[str, ...]] = (NOTE,)

    number: int = 10_000
    hopeless: float = 0.01
    """Part of the hooks that fail as often as they may be executed."""
    batch: int = 50
    """Hooks that are triggered at once."""
    ahead: float = 20.0
    """Seconds over which those hooks are spread that are to be executed later."""

    def drawn(self, seed: int) -> list[list[HookOrder]]:
        """The hooks of a run, in the batches in which they are triggered, by arrival."""
        rng = random.Random(f"hooks/{seed}")
        batches = []
        for first in range(0, self.number, self.batch):
            arrive = rng.uniform(0, self.seconds)
            numbers = range(first, min(first + self.batch, self.number))
            batches.append([_hook(self, rng, number, arrive) for number in numbers])
        return sorted(batches, key=lambda batch: batch[0].arrive)

    def operations(self, seed: int) -> dict[str, int]:
        """A trigger for each batch."""
        return {"trigger": -(-self.number // self.batch)}

    def last_arrival(self, seed: int) -> float:
        """When the last batch is triggered."""
        return max((batch[0].arrive for batch in self.drawn(seed)), default=0.0)

    def shortened(self, instances: int, seconds: float) -> Self:
        """Ten hooks for each instance."""
        return replace(self, number=min(self.number, 10 * instances), seconds=min(self.seconds, seconds))


@dataclass(frozen=True, slots=True)
class HookOrder:
    """A hook that is triggered. Times are seconds."""

    id: str
    arrive: float
    after: float | None
    """How long after its arrival it is to be executed. None: at once."""
    failures: int
    """How often its handler fails before it succeeds."""


def _hook(load: Hooks, rng: random.Random, number: int, arrive: float) -> HookOrder:
    after = rng.uniform(0, load.ahead) if number % 2 else None
    failures = ATTEMPTS if rng.random() < load.hopeless else rng.choice((0,) * 9 + (2,))
    return HookOrder(f"hook-{number}", arrive, after, failures)
