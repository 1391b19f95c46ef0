"""A forger changes single facts of a legal history: what a broken engine would have left behind.

A lie is told about one thing; where the API and SQL both show it, both lie, as both would. What it finds no place for
in a history it does not tell there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from tests.chaos.checker.view import View
from tests.chaos.facts.fact import Fact
from tests.chaos.facts.records import History
from tests.chaos.facts.run import NOBODY, Fault, Plan
from tests.chaos.facts.tasks import Change
from tests.chaos.facts.workflows import Effect

F = TypeVar("F")
T = TypeVar("T")

EXISTS = {"phase": "fail", "code": "ALREADY_EXISTS", "reason": "INSTANCE_ID_ALREADY_EXISTS", "value": {}}
"""What a creator is told of an id that somebody else has."""
AFTER_ALL_NS = 10**19
"""A moment when the run is long over."""


class NoPlace(Exception):
    """The history has nothing that the lie could be about."""


@dataclass(frozen=True, slots=True)
class Lie:
    """A lie, and the invariant that it breaks; "" stands for a run that proves nothing."""

    breaks: str
    also: frozenset[str]
    """Invariants that what it says may break besides."""
    tell: Callable[[Forger], None]

    @property
    def name(self) -> str:
        """What it says."""
        return self.tell.__name__


def breaks(invariant: str, *also: str) -> Callable[[Callable[[Forger], None]], Lie]:
    """Make a lie of a function."""
    return lambda tell: Lie(invariant, frozenset(also), tell)


class Forger:
    """A history that can be changed."""

    def __init__(self, truth: View, seed: int) -> None:
        self.truth = truth
        self.facts: list[Fact] = list(truth.history.facts)
        self.rng = random.Random(seed)

    @property
    def history(self) -> History:
        """What is left of the truth."""
        return History(tuple(self.facts))

    @property
    def plan(self) -> Plan:
        """What the run was about."""
        return self.truth.plan

    @property
    def too_late_us(self) -> int:
        """How long nothing takes that is not broken."""
        return 2 * self.plan.lateness_us + 30 * self.plan.lease_us

    # ---- finding a place

    def all(self, kind: type[F], /, **fields: Any) -> list[F]:
        """The facts of a kind whose fields, or columns, are these."""
        return [one for one in self.facts if isinstance(one, kind) and _is_like(one, fields)]

    def any(self, kind: type[F], /, **fields: Any) -> F:
        """One of them."""
        return self.one_of(self.all(kind, **fields))

    def one_of(self, places: Iterable[T]) -> T:
        """One of these."""
        found = list(places)
        if not found:
            raise NoPlace
        return self.rng.choice(found)

    def first(self, effects: Iterable[Effect]) -> Effect:
        """The earliest of these."""
        found = sorted(effects, key=lambda one: one.mono_ns)
        if not found:
            raise NoPlace
        return found[0]

    def versions(self, table: str, **columns: Any) -> Iterator[tuple[Change, Change]]:
        """Versions of all rows like this, each with the one that followed it."""
        rows: dict[tuple[Any, ...], list[Change]] = {}
        for one in self.all(Change, table=table, **columns):
            names = ("id", "task_id", "run_number", "name", "position") if table != "tasks" else ("id",)
            rows.setdefault(tuple(one.row.get(name) for name in names), []).append(one)
        for found in rows.values():
            yield from pairwise(sorted(found, key=lambda one: one.seq))

    def of_last_run(self, **columns: Any) -> Change:
        """A version of a step of an instance that was never restarted."""
        restarted = {one.row["id"] for one in self.all(Change, table="workflow_instances") if one.row["run_number"]}
        every = self.all(Change, table="workflow_steps", **columns)
        return self.one_of(one for one in every if one.row["task_id"] not in restarted)

    def key_of(self, change: Change) -> str:
        """The instance that a change is about."""
        return self.truth.keys[change.row.get("task_id", change.row.get("id"))]

    def last_stamp(self, key: str) -> int:
        """When an instance was last written to, by its own stamps."""
        story = self.truth.stories[key]
        steps = (one for versions in story.steps.values() for one in versions)
        events = (one.row["created_at"] for versions in story.events.values() for one in versions)
        return max(*(one.row["updated_at"] for one in (*story.versions, *steps)), *events)

    def zombies(self) -> list[Effect]:
        """Ends of executions that ended when another of their step had begun under a later fence."""
        starts = self.all(Effect, phase="start")
        return [
            end
            for end in self.all(Effect, phase="end")
            if any(
                (one.key, one.step, one.run) == (end.key, end.step, end.run) and (one.fence or 0) > (end.fence or 0)
                for one in starts
            )
        ]

    def mono_ns(self, wall_us: int) -> int:
        """A moment of the database's clock by the clock of processes."""
        warm = self.truth.stages["warm"]
        return warm.mono_ns + (wall_us - warm.wall_us) * 1000

    # ---- changing it

    def add(self, *facts: Fact) -> None:
        """Say what did not happen."""
        self.facts += facts

    def drop(self, *facts: Any) -> None:
        """Keep something back."""
        if not facts:
            raise NoPlace
        dropped = {id(one) for one in facts}
        self.facts = [one for one in self.facts if id(one) not in dropped]

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
        rows = self.all(kind, **like)
        if not rows:
            raise NoPlace
        for one in rows:
            self.alter(one, **fields)

    def after(self, change: Change, **columns: Any) -> None:
        """Let another version of a row follow, with the last stamp of its instance."""
        later = max(one.seq for one in self.all(Change)) + 1
        if "updated_at" in change.row:
            columns = {"updated_at": self.last_stamp(self.key_of(change))} | columns
        self.add(replace(change, seq=later, change="update", row=change.row | columns))

    def nothing_is_broken(self) -> None:
        """Let there have been no fault that would excuse anything."""
        self.facts = [one for one in self.facts if not isinstance(one, Fault) or one.target == NOBODY]


def _is_like(fact: Any, fields: dict[str, Any]) -> bool:
    """Tasks are those of instances, unless another kind is named."""
    row = fact.row if isinstance(fact, Change) else {}
    if "kind" in row and row["kind"] != fields.get("kind", "workflow"):
        return False
    return all((row[name] if name in row else getattr(fact, name, None)) == value for name, value in fields.items())
