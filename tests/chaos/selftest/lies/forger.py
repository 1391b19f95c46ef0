"""A forger changes single facts of a legal history: what a broken engine would have left behind.

A lie is told about one thing; where the API and SQL both show it, both lie, as both would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from tests.chaos.records import Change, Effect, Fact, History

F = TypeVar("F")
Lie: TypeAlias = Callable[["Forger"], None]

LIES: list[tuple[str, Lie]] = []
"""Each with the invariant that it breaks; "" stands for a run that proves nothing."""
EXISTS = {"phase": "fail", "code": "ALREADY_EXISTS", "reason": "INSTANCE_ID_ALREADY_EXISTS", "value": {}}
"""What a creator is told of an id that somebody else has."""


def breaks(invariant: str) -> Callable[[Lie], Lie]:
    """Add a lie to the list."""

    def add(lie: Lie) -> Lie:
        LIES.append((invariant, lie))
        return lie

    return add


class Forger:
    """A history that can be changed."""

    def __init__(self, history: History, seed: int) -> None:
        self.facts: list[Fact] = list(history.facts)
        self.rng = random.Random(seed)

    @property
    def history(self) -> History:
        """What is left of the truth."""
        return History(tuple(self.facts))

    def all(self, kind: type[F], /, **fields: Any) -> list[F]:
        """The facts of a kind whose fields, or columns, are these."""
        return [one for one in self.facts if isinstance(one, kind) and _is_like(one, fields)]

    def any(self, kind: type[F], /, **fields: Any) -> F:
        """One of them."""
        return self.rng.choice(self.all(kind, **fields))

    def add(self, *facts: Fact) -> None:
        """Say what did not happen."""
        self.facts += facts

    def drop(self, *facts: Any) -> None:
        """Keep something back."""
        self.facts = [one for one in self.facts if not any(one is other for other in facts)]

    def alter(self, fact: Any, **fields: Any) -> None:
        """Say something else; of a change, something else of its row."""
        if isinstance(fact, Change):
            columns = {name: value for name, value in fields.items() if name in fact.row}
            rest = {name: value for name, value in fields.items() if name not in fact.row}
            new: Any = replace(fact, row=fact.row | columns, **rest)
        else:
            new = replace(fact, **fields)
        self.facts = [new if one is fact else one for one in self.facts]

    def alter_rows(self, kind: type[Any], like: dict[str, Any], **fields: Any) -> None:
        """Let both sides of the snapshot say something else."""
        for one in self.all(kind, **like):
            self.alter(one, **fields)

    def after(self, change: Change, **columns: Any) -> None:
        """Let another version of a row follow."""
        later = [one.seq for one in self.all(Change)]
        self.add(replace(change, seq=max(later) + 1, change="update", row=change.row | columns))

    def key_of(self, change: Change) -> str:
        """The instance that a change is about."""
        number = change.row.get("task_id", change.row.get("id"))
        row = next(one.row for one in self.all(Change, table="workflow_instances") if one.row["id"] == number)
        return f"{row['namespace']}/{row['workflow']}/{row['instance_id']}"

    def zombies(self) -> list[tuple[str, str, str]]:
        """Instance, step and result of executions that ended when another had begun."""
        found = []
        for end in self.all(Effect, phase="end"):
            starts = self.all(Effect, phase="start", key=end.key, step=end.step, run=end.run)
            if any((one.fence or 0) > (end.fence or 0) for one in starts):
                found.append((end.key, end.step, end.value or ""))
        return found


def _is_like(fact: Any, fields: dict[str, Any]) -> bool:
    """Tasks are those of instances, unless another kind is named."""
    row = fact.row if isinstance(fact, Change) else {}
    if row.get("kind", fields.get("kind")) != fields.get("kind"):
        return False
    return all((row[name] if name in row else getattr(fact, name, None)) == value for name, value in fields.items())
