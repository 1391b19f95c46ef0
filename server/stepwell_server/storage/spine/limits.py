"""Limits of handlers: how many of their tasks may be held at once, over all replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import FromClause, Select, and_, func, not_, select, update

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.tasks import TaskStatus
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import handlers, tasks
from stepwell_server.storage.spine.handlers import (
    COLUMNS,
    as_rows,
    columns_of,
    from_row,
    in_status,
    is_named,
    same_handler,
)


def limit(tx: Tx, handler: Handler, *, concurrency: int | None, is_paused: bool = False) -> None:
    """Set how many tasks of a handler may be held at once over all replicas, or pause it."""
    tx.execute(update(handlers).where(is_named(handler)).values(concurrency=concurrency, is_paused=is_paused))


def lock(tx: Tx, asked: Iterable[Handler]) -> dict[Handler, int | None]:
    """Limits of those handlers that tasks may be claimed of until the transaction ends; None: it has no limit.

    Handlers without a limit are shared by all that claim, and one with a limit is one claim's at a time. Those that are
    paused, being changed, or another claim's are left out: whoever changes one waits for claims that are under way.
    """
    product, unsure = dialect.product(tx), set(asked)
    limits: dict[Handler, int | None] = {}
    for limited in (False, True):
        if unsure:
            found = tx.execute(_lock_sql(product, limited), {"wanted": as_rows(unsure)})
            limits |= {from_row(row): row.concurrency for row in found}
            unsure -= limits.keys()
    return limits


@cache
def _lock_sql(product: str, limited: bool) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    is_limited = handlers.c.concurrency.is_not(None) if limited else handlers.c.concurrency.is_(None)
    same = [same_handler(handlers.c, wanted.c), is_limited, not_(handlers.c.is_paused)]
    lock = {"skip_locked": True} | ({"key_share": True} if limited else {"read": True})
    joined, mine = dialect.look_up(product, wanted, handlers, *same, lock=lock)
    return select(*columns_of(mine.c), mine.c.concurrency).select_from(joined)


def count_held(tx: Tx, of: Sequence[Handler]) -> dict[Handler, int]:
    """How many tasks of each handler are held, lapsed ones included until another has claimed them."""
    if not of:
        return {}
    found = tx.execute(_count_held_sql(dialect.product(tx)), {"wanted": as_rows(of)})
    return {from_row(row): row.held for row in found}


@cache
def _count_held_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    return select(wanted, held_of(wanted).label("held"))


def held_of(of: FromClause) -> Any:
    """How many tasks of a handler are held."""
    mine = and_(same_handler(tasks.c, of.c), tasks.c.status == in_status(TaskStatus.PROCESSING))
    return select(func.count()).select_from(tasks).where(mine).correlate(of).scalar_subquery()
