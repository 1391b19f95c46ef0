"""Names of handlers that are not in use any more. `handlers` writes which are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Delete, Row, Select, bindparam, literal, not_, or_, select

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.spine import declarations, handlers, tasks
from stepwell_server.storage.spine.handlers import COLUMNS, columns_of, same_handler

History: TypeAlias = Callable[[Any], Sequence[ColumnElement[bool]]]
"""Of a kind: which of its rows refer to a name, given the columns that name it."""


def forget(
    tx: Tx, unused_since: Micros, limit: int, after: Position, history: Mapping[TaskKind, History]
) -> Position | None:
    """Look at the names after a position, and forget unused ones that nothing refers to. None: these were the last.

    A transaction that registers a name, or stores work for it, has first seen that the name is in use, or writes that
    it is. So either it waits for this one and finds the name gone, or this one skips the name or finds it in use.
    """
    walk = select(handlers).order_by(*columns_of(handlers.c)).limit(limit)
    if after:
        walk = walk.where(beyond(columns_of(handlers.c), after))
    page = tx.execute(walk).all()
    unused = [_named(row) for row in page if _can_go(row) and row.used_at < unused_since]
    if unused:
        given = {"wanted": dialect.as_rows(unused), "unused_since": unused_since}
        locked = [_named(row) for row in tx.execute(_lock_sql(dialect.product(tx)), given)]
        forget_them = _forget_sql(dialect.product(tx), tuple(history.items()))
        forgotten = [_named(row) for row in tx.execute(forget_them, {"wanted": dialect.as_rows(locked)})]
        tx.execute(_forget_declared_sql(dialect.product(tx)), {"wanted": dialect.as_rows(forgotten)})
    return list(_named(page[-1]).values()) if len(page) == limit else None


def _can_go(row: Row[Any]) -> bool:
    """Whether a name can be forgotten at all: it is as it was, and this server knows what refers to it."""
    known = row.kind in [kind.value for kind in TaskKind]
    return known and not (row.is_paused or row.has_target or row.is_listener) and row.concurrency is None


def _named(row: Row[Any]) -> dict[str, str]:
    return {name: row._mapping[name] for name in COLUMNS}


@cache
def _lock_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    still = [
        same_handler(handlers.c, wanted.c),
        handlers.c.used_at < bindparam("unused_since", type_=BigInteger()),
        handlers.c.concurrency.is_(None),
        not_(handlers.c.is_paused),
    ]
    joined, mine = dialect.look_up(product, wanted, handlers, *still, lock={"skip_locked": True})
    return select(*columns_of(mine.c)).select_from(joined)


@cache
def _forget_sql(product: str, history: tuple[tuple[TaskKind, History], ...]) -> Any:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    statement = dialect.erase(product, handlers, wanted, *COLUMNS)
    has_task = _exists(product, same_handler(tasks.c, handlers.c))
    has_history = [(handlers.c.kind == kind) & _exists(product, *refers(handlers.c)) for kind, refers in history]
    gone = statement.where(not_(or_(has_task, *has_history)), not_(handlers.c.has_target))
    return gone.returning(*columns_of(handlers.c))


@cache
def _forget_declared_sql(product: str) -> Delete:
    return dialect.erase(product, declarations, dialect.rows(product, "wanted", **COLUMNS), *COLUMNS)


def _exists(product: str, *same: ColumnElement[bool]) -> ColumnElement[bool]:
    return dialect.fenced(product, select(literal(1)).where(*same).correlate(handlers)).exists()
