"""Facts as a chaos run writes them down and the checker reads them: one JSON line per fact.

A run is a folder of `*.jsonl` files, one per process that records; a process that is started again takes a new file.
The order of files and lines means nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tests.chaos.facts import calls, hooks, run, tasks, wakes, workflows
from tests.chaos.facts.fact import Fact
from tests.chaos.facts.run import Plan

MODULES = (run, calls, tasks, workflows, hooks, wakes)
"""Where facts are defined. A primitive adds its own."""
KINDS: dict[str, type[Fact]] = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Fact) and kind is not Fact
}
F = TypeVar("F")


def to_line(fact: Fact) -> str:
    """A fact as one line of JSON, without its end."""
    return json.dumps({"kind": type(fact).__name__} | asdict(fact), separators=(",", ":"))


def from_line(line: str) -> Fact:
    """The fact of a line. A field that a reader does not know is an error: the two would not mean the same."""
    values = json.loads(line)
    kind: type[Fact] = KINDS[values.pop("kind")]
    return kind(**values)


class Recorder:
    """Appends facts to a file, each by one write, so that a kill between two leaves whole lines.

    `durable`: fsync each one; for effects, which must be known whatever happens next.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._durable = durable

    def record(self, *facts: Fact) -> None:
        """Write the facts down."""
        os.write(self._file, "".join(f"{to_line(one)}\n" for one in facts).encode())
        if self._durable:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class History:
    """All facts of a run."""

    facts: tuple[Fact, ...]

    def of(self, kind: type[F]) -> list[F]:
        """The facts of a kind, in the order of their files and lines."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def plan(self) -> Plan:
        """The one plan."""
        (plan,) = self.of(Plan)
        return plan


def load(folder: Path) -> History:
    """All facts of a folder. A last line that was cut short by a kill is left out; any other is an error."""
    return History(tuple(fact for path in sorted(folder.glob("*.jsonl")) for fact in _read(path)))


def _read(path: Path) -> Iterator[Fact]:
    *whole, _cut = path.read_text().split("\n")
    yield from map(from_line, whole)
