"""What a run measured, as one JSON document: the machine, the settings, and the figures of every round."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.loads import Figures


@dataclass
class Results:
    """A run that goes on, or one that was read back."""

    sizes: dict[str, float]
    scheduling: str
    delay_ms: float = 0.0
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine: str = field(default_factory=lambda: _machine())
    products: dict[str, str] = field(default_factory=dict)
    """Version and settings of each product."""
    titles: dict[str, str] = field(default_factory=dict)
    """Name and version of each contestant."""
    settings: dict[str, str] = field(default_factory=dict)
    """Of each contestant."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the sizes, of each contestant."""
    rounds: list[dict[str, Figures]] = field(default_factory=list)
    """By contestant."""
    absent: dict[str, str] = field(default_factory=dict)
    """Contestants that did not run, and why."""

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a document."""
        document: dict[str, Any] = json.loads(path.read_text())
        return cls(**document)

    def save(self, path: Path) -> None:
        """Write the document, whole."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def of(self, name: str, label: str) -> list[float]:
        """A figure of a contestant, in each round that has it."""
        return [figures[name][label] for figures in self.rounds if label in figures.get(name, {})]

    def names(self) -> list[str]:
        """The contestants that ran, in the order of the first round."""
        return [*dict.fromkeys(name for figures in self.rounds for name in figures)]


def _machine() -> str:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return f"{os.cpu_count()} processors, {system}, Python {platform.python_version()}"
