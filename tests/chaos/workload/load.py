"""How much work a run has: one load for each primitive that it uses, drawn from the run's seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tests.chaos.facts.fact import Fact


@dataclass(frozen=True, slots=True)
class Load:
    """How much of one primitive's work arrives. The same seed draws the same in every process."""

    primitive: ClassVar[str]
    """Its name in `primitives.PRIMITIVES`."""
    handlers: ClassVar[tuple[str, ...]]
    """Names that workers must have registered before the first of it arrives."""
    left: ClassVar[str] = "0"
    """SQL that counts the tasks that may be there when all has come to rest."""

    seconds: float = 60.0
    """Time over which it arrives."""
    hasty: float = 0.0
    """Part of the calls whose first try is given up after up to 30 milliseconds."""

    @property
    def watched(self) -> int:
        """Things that are watched to their ends."""
        return 0

    def plans(self, seed: int) -> Sequence[Fact]:
        """What is to happen to each thing, written down before the run."""
        return ()

    def operations(self, seed: int) -> dict[str, int]:
        """The requests that clients mean to make, by op."""
        raise NotImplementedError

    def last_arrival(self, seed: int) -> float:
        """Seconds from the first moment to the last arrival."""
        raise NotImplementedError

    def shortened(self, instances: int, seconds: float) -> Self:
        """Less of it: about as much as so many instances."""
        raise NotImplementedError
