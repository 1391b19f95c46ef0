"""Next wakes: when something of a handler can be claimed next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import FromClause, Row, Select, Text, and_, bindparam, case, cast, func, literal, select, tuple_, union

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.tasks import TaskStatus
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import handlers, tasks
from stepwell_server.storage.spine.handlers import (
    COLUMNS,
    as_rows,
    columns_of,
    from_row,
    in_status,
    is_known,
    same_handler,
)
from stepwell_server.storage.spine.limits import held_of

_NAMESPACE = bindparam("namespace", type_=Text())


@dataclass(frozen=True, slots=True)
class HandlerWake:
    """When something of a handler can be claimed next. The two times are of two clocks; None: never, as things are."""

    handler: Handler
    due_at: Micros | None
    """By db_now(): when the first pending task is due."""
    lapses_at: Micros | None
    """By lease_now(): when the first lease ends."""
    is_registered: bool = True
    """A worker said once that it hosts it, or it has a target."""
    held_back: Micros | None = None
    """By db_now(): when the first pending task is due that waits for a held one, as no more may be held at once."""


def next_wakes(tx: Tx, of: Sequence[Handler] | None = None) -> list[HandlerWake]:
    """When the next task of each handler can be claimed: of these, or of all that have tasks or are told of events.

    Pending tasks count by their time, held ones by the end of their lease. A handler that is paused, or whose limit is
    reached, gives nothing before a lease in it ends; parked and blocked tasks never count: their release is a change.
    """
    if of is None:
        found = tx.execute(_used_wakes_sql(dialect.product(tx), in_one=False))
    else:
        found = tx.execute(_next_wakes_sql(dialect.product(tx)), {"wanted": as_rows(of)})
    return [_wake(row) for row in found]


def next_wakes_in(tx: Tx, namespace: str) -> list[HandlerWake]:
    """When the next task of each handler of a namespace can be claimed that has tasks or is told of events."""
    found = tx.execute(_used_wakes_sql(dialect.product(tx), in_one=True), {"namespace": namespace})
    return [_wake(row) for row in found]


@cache
def _next_wakes_sql(product: str) -> Select[Any]:
    return _wakes_of(product, dialect.rows(product, "wanted", **COLUMNS))


@cache
def _used_wakes_sql(product: str, *, in_one: bool) -> Select[Any]:
    """Names that nothing waits for are not met, however many there are."""
    used = _used(product, in_one=in_one)
    mine = [handlers.c.namespace == _NAMESPACE] if in_one else []
    listeners = select(*columns_of(handlers.c)).where(handlers.c.is_listener, *mine)
    wanted = union(select(used).where(is_known(used.c.kind)), listeners).subquery("wanted")
    return _wakes_of(product, wanted)


def _used(product: str, *, in_one: bool) -> FromClause:
    """Handlers that have tasks, in one namespace or in all, after one that is before all: from each to the next."""
    start = [_NAMESPACE if in_one else literal(""), literal(""), literal("")]
    names = zip(start, columns_of(tasks.c), strict=True)
    used = select(*(cast(value, one.type).label(one.name) for value, one in names)).cte("used", recursive=True)
    after = tasks.alias("after")
    mine = [after.c.namespace == _NAMESPACE] if in_one else []
    namespace, kind, name = columns_of(used.c)
    first = dialect.unindexed(namespace), dialect.unindexed(kind), name.concat("\x01")  # the first name after this one
    later = tuple_(*columns_of(after.c)) >= tuple_(*first)  # SQLite would walk all that are equal, told ">"
    follows = select(after.c.id).where(later, *mine).order_by(*columns_of(after.c)).limit(1)
    next_id = follows.correlate(used).scalar_subquery()
    joined, found = dialect.look_up(product, used, tasks, tasks.c.id == next_id)
    return used.union_all(select(*columns_of(found.c)).select_from(joined))


def _wakes_of(product: str, wanted: FromClause) -> Select[Any]:
    joined, mine = dialect.look_up(product, wanted, handlers, same_handler(handlers.c, wanted.c))
    return _with_wake(product, mine).select_from(joined)


def _with_wake(product: str, of: FromClause) -> Select[Any]:
    return select(
        *columns_of(of.c),
        of.c.concurrency,
        of.c.is_paused,
        _first_of(of, tasks.c.run_at, TaskStatus.PENDING).label("pending"),
        _first_of(of, tasks.c.locked_until, TaskStatus.PROCESSING).label("lapses"),
        case((of.c.concurrency.is_not(None), held_of(of)), else_=0).label("held"),
        (of.c.registered_at.is_not(None) | of.c.has_target).label("is_registered"),
    )


def _wake(row: Row[Any]) -> HandlerWake:
    saturated = row.concurrency is not None and row.held >= row.concurrency
    due_at = None if row.is_paused or saturated else row.pending
    lapses_at = None if row.is_paused else row.lapses
    held_back = row.pending if saturated and not row.is_paused else None
    return HandlerWake(from_row(row), due_at, lapses_at, bool(row.is_registered), held_back)


def _first_of(of: FromClause, moment: Any, status: TaskStatus) -> Any:
    """The earliest such moment among the tasks of a handler in that status."""
    mine = and_(same_handler(tasks.c, of.c), tasks.c.status == in_status(status))
    return select(func.min(moment)).where(mine).correlate(of).scalar_subquery()
