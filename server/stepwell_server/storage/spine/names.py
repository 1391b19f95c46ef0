"""Names of handlers that are not in use any more. `handlers` writes which are."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Delete, Row, Select, bindparam, literal, not_, or_, select

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.events import EngineEventName
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema import handlers, hook_targets, hooks, tasks, workflow_instances
from stepwell_server.storage.spine.handlers import COLUMNS, columns_of, same_handler

_KEPT = {one.value for one in EngineEventName}
"""Replicas believe for as long as they live that these are hosted."""


def forget(tx: Tx, unused_since: Micros, limit: int, after: Position) -> Position | None:
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
        tx.execute(_forget_sql(dialect.product(tx)), {"wanted": dialect.as_rows(locked)})
    return list(_named(page[-1]).values()) if len(page) == limit else None


def _can_go(row: Row[Any]) -> bool:
    """Whether a name can be forgotten at all: nobody limited or paused it, and this server knows what refers to it."""
    known = row.kind in [kind.value for kind in TaskKind]
    return known and row.concurrency is None and not row.is_paused and row.name not in _KEPT


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
def _forget_sql(product: str) -> Delete:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    statement = dialect.erase(product, handlers, wanted, *COLUMNS)
    return statement.where(not_(_is_referred_to(product)))


def _is_referred_to(product: str) -> ColumnElement[bool]:
    """Whether a name has a task, an instance, a hook or a target."""
    mine, instance = handlers.c, workflow_instances.c
    is_workflow, is_hook = mine.kind == TaskKind.WORKFLOW, mine.kind == TaskKind.HOOK
    return or_(
        _exists(product, same_handler(tasks.c, mine)),
        is_workflow & _exists(product, instance.namespace == mine.namespace, instance.workflow == mine.name),
        is_hook & _exists(product, hooks.c.namespace == mine.namespace, hooks.c.name == mine.name),
        is_hook & _exists(product, hook_targets.c.namespace == mine.namespace, hook_targets.c.name == mine.name),
    )


def _exists(product: str, *same: ColumnElement[bool]) -> ColumnElement[bool]:
    return dialect.fenced(product, select(literal(1)).where(*same).correlate(handlers)).exists()
