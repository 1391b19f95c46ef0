"""Rows of handlers: the names that work is addressed to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.spine.definitions import Definition
from stepwell_server.domain.spine.events import is_event
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.tasks import TaskStatus
from stepwell_server.domain.values.errors import HandlerLimit
from stepwell_server.domain.values.times import DAY, Micros
from stepwell_server.storage import namespaces as namespaces_store
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.spine import handlers

COLUMNS: dict[str, TypeEngine[Any]] = {"namespace": Text(), "kind": Text(), "name": Text()}

STALE: Micros = DAY
"""That a name is in use is written again once what is written is this old."""


def note(tx: Tx, used: Iterable[Handler]) -> None:
    """Remember whom work is addressed to, and that these names are in use: none is forgotten for days."""
    news = set(used)
    news -= {from_row(row) for row in _known(tx, news) if row.is_fresh}
    if news:
        tx.execute(_note_sql(dialect.product(tx)), {"fresh": dialect.as_rows(map(_fresh_row, news))})


@cache
def _note_sql(product: str) -> Any:
    fresh = dialect.rows(product, "fresh", **COLUMNS, is_listener=Boolean())
    values = [fresh.c.is_listener, literal(False), db_now(), db_now()]
    source = select(*columns_of(fresh.c), *values).where(true())
    names = [*COLUMNS, "is_listener", "is_paused", "created_at", "used_at"]
    statement = dialect.insert(product, handlers).from_select(names, source.order_by(*columns_of(fresh.c)))
    return statement.on_conflict_do_update(index_elements=list(COLUMNS), set_={"used_at": statement.excluded.used_at})


def use(tx: Tx, handler: Handler) -> bool:
    """Whether a worker ever said that it hosts this. If so, its name is in use: it is not forgotten for days."""
    (row,) = _known(tx, [handler]) or (None,)
    if row is None or row.registered_at is None:
        return False
    if row.is_fresh:
        return True
    written = update(handlers).where(is_named(handler)).values(used_at=db_now()).returning(handlers.c.name)
    return tx.execute(written).first() is not None  # else it was forgotten just now


def target(tx: Tx, handler: Handler, *, has_target: bool) -> None:
    """Note whether the server itself takes the tasks of a handler to a target."""
    tx.execute(update(handlers).where(is_named(handler)).values(has_target=has_target))


# ---- registration


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler that a worker said it hosts, as its row is."""

    handler: Handler
    definition: Definition | None
    """The definition in force. None: only older servers have registered the handler."""
    description: str
    registered_at: Micros


def unnoted(tx: Tx, hosted: Collection[Handler]) -> set[Handler]:
    """Those of these that no worker said it hosts, or none for a day."""
    return {*hosted} - {from_row(row) for row in _known(tx, hosted) if row.is_fresh and row.registered_at is not None}


def register(tx: Tx, hosted: Iterable[Handler]) -> None:
    """Store that workers host these, and that their names are in use. Their rows are locked from now on."""
    tx.execute(_register_sql(dialect.product(tx)), {"fresh": dialect.as_rows(map(_fresh_row, hosted))})


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
    is_fresh = (mine.c.used_at > db_now() - STALE).label("is_fresh")
    return select(*columns_of(mine.c), mine.c.registered_at, is_fresh).select_from(joined)


@cache
def _register_sql(product: str) -> Any:
    fresh = dialect.rows(product, "fresh", **COLUMNS, is_listener=Boolean())
    names = [*COLUMNS, "is_listener", "is_paused", "created_at", "registered_at", "used_at"]
    values = [fresh.c.is_listener, literal(False), db_now(), db_now(), db_now()]
    source = select(*columns_of(fresh.c), *values).where(true())
    statement = dialect.insert(product, handlers).from_select(names, source.order_by(*columns_of(fresh.c)))
    return statement.on_conflict_do_update(
        index_elements=list(COLUMNS),
        set_={
            "registered_at": func.coalesce(handlers.c.registered_at, statement.excluded.registered_at),
            "used_at": statement.excluded.used_at,
        },
    )


def registered(tx: Tx, handler: Handler) -> Registered | None:
    """The handler, if a worker ever said that it hosts this."""
    row = tx.execute(select(handlers).where(is_named(handler), handlers.c.registered_at.is_not(None))).first()
    return None if row is None else _registered(row)


def list_registered(tx: Tx, namespace: str, kind: TaskKind, limit: int, after: Position | None) -> list[Registered]:
    """Up to `limit` registered handlers of a kind by name, those after the position."""
    mine = [handlers.c.namespace == namespace, handlers.c.kind == kind, handlers.c.registered_at.is_not(None)]
    statement = select(handlers).where(*mine).order_by(handlers.c.name).limit(limit)
    if after is not None:
        statement = statement.where(beyond([handlers.c.name], after))
    return [_registered(row) for row in tx.execute(statement)]


def _registered(row: Row[Any]) -> Registered:
    definition = None if row.definition_hash is None else Definition(row.definition, row.definition_hash)
    return Registered(from_row(row), definition, row.description, row.registered_at)


# ---- rows


def is_named(handler: Handler) -> ColumnElement[bool]:
    """Whether a row of the table is this handler's."""
    return and_(*(handlers.c[name] == value for name, value in as_row(handler).items()))


def same_handler(left: Any, right: Any) -> Any:
    """Whether two sets of columns name the same handler."""
    return and_(*(one == other for one, other in zip(columns_of(left), columns_of(right), strict=True)))


def columns_of(columns: Any) -> list[Any]:
    """The columns that name a handler."""
    return [columns.namespace, columns.kind, columns.name]


def as_rows(of: Iterable[Handler]) -> str:
    """Handlers as the value of a `dialect.rows` parameter."""
    return dialect.as_rows(map(as_row, of))


def _fresh_row(handler: Handler) -> dict[str, Any]:
    return as_row(handler) | {"is_listener": is_event(handler.name)}


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
