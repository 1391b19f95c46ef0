"""Facts about rows and tasks, whichever primitive they belong to, as the database and the workers saw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.chaos.facts.fact import Fact, Row


@dataclass(frozen=True, slots=True)
class Change(Fact):
    """A row was written and committed, as triggers of the run's own noted it (`trail.py`).

    `seq` is the order of changes to one instance; `tx` is the same for all changes of a transaction.
    """

    seq: int
    at_us: int
    tx: int
    table: str
    change: Literal["insert", "update", "delete"]
    row: Row
    """Columns of the row as it is after the change; of a delete, as it was."""


@dataclass(frozen=True, slots=True)
class TaskRow(Fact):
    """A task in the final snapshot: the whole row, with the key of its instance. `now_us`: when it was read."""

    key: str
    now_us: int
    row: Row


@dataclass(frozen=True, slots=True)
class GivenUp(Fact):
    """A worker stopped a task by itself, because it had not been able to renew its lease."""

    worker: str
    task_id: int
    fence: int
    mono_ns: int
    told: bool = False
    """Not by itself: a server has said that the lease is lost."""
