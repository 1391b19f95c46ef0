"""Fates: what became of tasks that ended, or that began again under another lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, CompoundSelect, Select, Table, Text, literal, select, union_all

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.leases import Held
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx

Kept: TypeAlias = Table
"""Rows of a kind that stay when their tasks end: id, namespace, ended_at, ended_fence; first_fence if they can begin
again."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a task."""

    kind: TaskKind
    namespace: str
    has_ended: bool
    ended_fence: int | None
    """Lease whose holder ended it. None: it ended by itself, or did not end."""
    first_fence: int = 0
    """First lease since it began again."""

    def supersedes(self, held: Held) -> bool:
        """Whether the work of that lease is over: the task has ended, or began again later."""
        return self.has_ended or held.fence < self.first_fence


def read(tx: Tx, ids: Iterable[int], kept: Mapping[TaskKind, Kept]) -> dict[int, Fate]:
    """What became of these tasks, of any kind that keeps rows: one statement, because an id does not tell the kind."""
    if not kept:
        return {}
    statement = _read_sql(dialect.product(tx), tuple(kept.items()))
    found = tx.execute(statement, {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {
        row.id: Fate(TaskKind(row.kind), row.namespace, row.ended_at is not None, row.ended_fence, row.first_fence)
        for row in found
    }


@cache
def _read_sql(product: str, kept: tuple[tuple[TaskKind, Kept], ...]) -> CompoundSelect[Any]:
    return union_all(*(_kept_sql(product, kind, table) for kind, table in kept))


def _kept_sql(product: str, kind: TaskKind, table: Table) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", id=BigInteger())
    first = table.c.first_fence if "first_fence" in table.c else literal(0, BigInteger()).label("first_fence")
    columns = [table.c[name] for name in ("id", "namespace", "ended_at", "ended_fence")]
    named = literal(kind.value, Text()).label("kind")
    return select(named, *columns, first).where(dialect.among(product, table.c.id, wanted.c.id))
