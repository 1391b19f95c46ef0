"""Rows of handlers: whom work is addressed to, how much of it may be held at once, and when it is next due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    not_,
    select,
    true,
    tuple_,
    union,
    update,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.tasks import TaskStatus
from stepwell_server.domain.values.errors import HandlerLimit
from stepwell_server.domain.values.times import DAY, Micros
from stepwell_server.domain.workflows.events import EngineEventName
from stepwell_server.storage import namespaces as namespaces_store
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema import handlers, hook_targets, namespaces, tasks

COLUMNS: dict[str, TypeEngine[Any]] = {"namespace": Text(), "kind": Text(), "name": Text()}

STALE: Micros = DAY
"""That a name is in use is written again once what is written is this old."""

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


def note(tx: Tx, used: Iterable[Handler]) -> None:
    """Remember whom work is addressed to, and that these names are in use: none is forgotten for days."""
    news = set(used)
    news -= {from_row(row) for row in _known(tx, news) if row.is_fresh}
    if news:
        tx.execute(_note_sql(dialect.product(tx)), {"fresh": as_rows(news)})


@cache
def _note_sql(product: str) -> Any:
    fresh = dialect.rows(product, "fresh", **COLUMNS)
    source = select(*columns_of(fresh.c), literal(False), db_now(), db_now()).where(true())
    names = [*COLUMNS, "is_paused", "created_at", "used_at"]
    statement = dialect.insert(product, handlers).from_select(names, source.order_by(*columns_of(fresh.c)))
    return statement.on_conflict_do_update(index_elements=list(COLUMNS), set_={"used_at": statement.excluded.used_at})


def use(tx: Tx, handler: Handler) -> bool:
    """Whether a worker ever said that it hosts this. If so, its name is in use: it is not forgotten for days."""
    (row,) = _known(tx, [handler]) or (None,)
    if row is None or row.registered_at is None:
        return False
    if row.is_fresh:
        return True
    written = update(handlers).where(_is(handler)).values(used_at=db_now()).returning(handlers.c.name)
    return tx.execute(written).first() is not None  # else it was forgotten just now


def limit(tx: Tx, handler: Handler, *, concurrency: int | None, is_paused: bool = False) -> None:
    """Set how many tasks of a handler may be held at once over all replicas, or pause it."""
    tx.execute(update(handlers).where(_is(handler)).values(concurrency=concurrency, is_paused=is_paused))


def _is(handler: Handler) -> ColumnElement[bool]:
    return and_(*(handlers.c[name] == value for name, value in as_row(handler).items()))


# ---- registration


def register(tx: Tx, hosted: Iterable[Registration]) -> None:
    """Store what a worker hosts, and that these names are in use. A repeated registration changes nothing for a day."""
    told = {one.handler: one for one in hosted}
    for row in _known(tx, told):
        if row.is_fresh and row.registered_at is not None and row.description == told[from_row(row)].description:
            del told[from_row(row)]
    if told:  # who writes waits for all claims of these that are under way
        rows = [as_row(one.handler) | {"description": one.description} for one in told.values()]
        tx.execute(_register_sql(dialect.product(tx)), {"fresh": dialect.as_rows(rows)})


def admit(tx: Tx, namespace: str, wanted: Collection[Handler], most: int) -> None:
    """Refuse new names beyond so many in a namespace, which no other transaction adds to until this one ends."""
    if len(_known(tx, wanted)) == len(wanted):
        return
    namespaces_store.lock(tx, namespace)
    fresh = len(wanted) - len(_known(tx, wanted))
    named = tx.execute(select(func.count()).select_from(handlers).where(handlers.c.namespace == namespace)).scalar_one()
    if fresh and named + fresh > most:
        raise HandlerLimit(f"a namespace has at most {most} names of handlers, and this would be too many", limit=most)


def _known(tx: Tx, wanted: Iterable[Handler]) -> Sequence[Row[Any]]:
    return tx.execute(_known_sql(dialect.product(tx)), {"wanted": as_rows(wanted)}).all()


@cache
def _known_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    joined, mine = dialect.look_up(product, wanted, handlers, same_handler(handlers.c, wanted.c))
    return select(mine, (mine.c.used_at > db_now() - STALE).label("is_fresh")).select_from(joined)


@cache
def _register_sql(product: str) -> Any:
    fresh = dialect.rows(product, "fresh", **COLUMNS, description=Text())
    names = [*COLUMNS, "description", "is_paused", "created_at", "registered_at", "used_at"]
    values = [fresh.c.description, literal(False), db_now(), db_now(), db_now()]
    source = select(*columns_of(fresh.c), *values).where(true())
    statement = dialect.insert(product, handlers).from_select(names, source.order_by(*columns_of(fresh.c)))
    return statement.on_conflict_do_update(
        index_elements=list(COLUMNS),
        set_={
            "description": statement.excluded.description,
            "registered_at": func.coalesce(handlers.c.registered_at, statement.excluded.registered_at),
            "used_at": statement.excluded.used_at,
        },
    )


def is_registered(tx: Tx, handler: Handler) -> bool:
    """Whether a worker ever said that it hosts this."""
    registered = select(handlers.c.name).where(_is(handler), handlers.c.registered_at.is_not(None))
    return tx.execute(registered).first() is not None


def list_registered(tx: Tx, namespace: str, kind: TaskKind, limit: int, after: Position | None) -> list[Registration]:
    """Up to `limit` registered handlers of a kind by name, those after the position."""
    mine = [handlers.c.namespace == namespace, handlers.c.kind == kind, handlers.c.registered_at.is_not(None)]
    statement = select(handlers).where(*mine).order_by(handlers.c.name).limit(limit)
    if after is not None:
        statement = statement.where(beyond([handlers.c.name], after))
    return [Registration(from_row(row), row.description, row.registered_at) for row in tx.execute(statement)]


# ---- limits


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
    return select(mine).select_from(joined)


def count_held(tx: Tx, of: Sequence[Handler]) -> dict[Handler, int]:
    """How many tasks of each handler are held, lapsed ones included until another has claimed them."""
    if not of:
        return {}
    found = tx.execute(_count_held_sql(dialect.product(tx)), {"wanted": as_rows(of)})
    return {from_row(row): row.held for row in found}


@cache
def _count_held_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    return select(wanted, _held_of(wanted).label("held"))


# ---- next wake


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
    mine = [namespaces.c.name == _NAMESPACE] if in_one else []
    told = [
        select(namespaces.c.name, literal(TaskKind.HOOK.value), literal(event.value)).where(*mine)
        for event in EngineEventName
    ]
    wanted = union(select(used).where(is_known(used.c.kind)), *told).subquery("wanted")
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
        of,
        _first_of(of, tasks.c.run_at, TaskStatus.PENDING).label("pending"),
        _first_of(of, tasks.c.locked_until, TaskStatus.PROCESSING).label("lapses"),
        case((of.c.concurrency.is_not(None), _held_of(of)), else_=0).label("held"),
        (of.c.registered_at.is_not(None) | _has_target(product, of)).label("is_registered"),
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


def _has_target(product: str, of: FromClause) -> Any:
    mine = and_(hook_targets.c.namespace == of.c.namespace, hook_targets.c.name == of.c.name)
    target = dialect.fenced(product, select(hook_targets.c.name).where(mine).correlate(of))
    return (of.c.kind == TaskKind.HOOK) & target.exists()


def _held_of(of: FromClause) -> Any:
    """How many tasks of a handler are held."""
    mine = and_(same_handler(tasks.c, of.c), tasks.c.status == in_status(TaskStatus.PROCESSING))
    return select(func.count()).select_from(tasks).where(mine).correlate(of).scalar_subquery()


# ---- rows


def same_handler(left: Any, right: Any) -> Any:
    """Whether two sets of columns name the same handler."""
    return and_(*(one == other for one, other in zip(columns_of(left), columns_of(right), strict=True)))


def columns_of(columns: Any) -> list[Any]:
    """The columns that name a handler."""
    return [columns.namespace, columns.kind, columns.name]


def as_rows(of: Iterable[Handler]) -> str:
    """Handlers as the value of a `dialect.rows` parameter."""
    return dialect.as_rows(map(as_row, of))


def as_row(handler: Handler) -> dict[str, Any]:
    """A handler as columns of a row."""
    return {"namespace": handler.namespace, "kind": handler.kind, "name": handler.name}


def from_row(row: Row[Any]) -> Handler:
    """A handler from a row that names it."""
    return Handler(row.namespace, TaskKind(row.kind), row.name)


def is_known(kind: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether this server knows the kind. Others are a newer server's, which runs beside it, and looks after them."""
    return dialect.unindexed(kind).in_([one.value for one in TaskKind])


def in_status(status: TaskStatus) -> Any:
    """A status as part of the statement's text, so that the partial indexes can be used."""
    return literal(status.value, literal_execute=True)
