"""What the checker says: which promise was broken where, and what the run amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

COUNTERS = (
    "lost",
    "double-completed",
    "stale-accepted",
    "early-fired",
    "late",
    "attempts-over-limit",
    "stuck",
)
"""What must be zero in every run."""

Status: TypeAlias = Literal["valid", "invalid", "unknown"]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    invariant: str
    """As in the catalogue: "W4"."""
    about: str
    """Mostly the key of an instance."""
    text: str
    counter: str = ""
    """Which of COUNTERS it adds to, if one."""

    def __str__(self) -> str:
        return f"{self.invariant} {self.about}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run amounts to: valid, invalid, or unknown because too little happened to tell."""

    violations: Sequence[Violation]
    doubts: Sequence[str]
    """Why it proves nothing."""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """A broken promise is one, however little else happened."""
        if self.violations:
            return "invalid"
        return "unknown" if self.doubts else "valid"

    @property
    def counters(self) -> dict[str, int]:
        """The counters that must be zero."""
        counted = Counter(one.counter for one in self.violations)
        return {name: counted[name] for name in COUNTERS}

    @property
    def broken(self) -> list[str]:
        """The invariants that do not hold."""
        return sorted({one.invariant for one in self.violations})

    def __str__(self) -> str:
        lines = [f"verdict: {self.status}"]
        lines += [f"  {name}: {value}" for name, value in (self.counters | self.figures).items()]
        lines += [f"  unknown because {doubt}" for doubt in self.doubts]
        for invariant in self.broken:
            found = [one for one in self.violations if one.invariant == invariant]
            lines += [f"  {one}" for one in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"  {invariant}: {len(found) - _SHOWN} more")
        return "\n".join(lines)
