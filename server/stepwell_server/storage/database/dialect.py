"""The only reader of `dialect.name` besides the clock: what the two databases spell differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Delete,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import fence_counter

MIGRATION_LOCK = 0x57E9_3E11
"""Key of the advisory lock that lets one process migrate a PostgreSQL database at a time."""


def insert(product: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that knows ON CONFLICT, in the words of that database."""
    if product == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def product(tx: Tx) -> str:
    """Which database it is: "sqlite" or "postgresql"."""
    return tx.dialect.name


def version(tx: Tx) -> str:
    """The database's own version, such as "18.1" or "3.45.1"."""
    if product(tx) == "postgresql":
        return str(tx.execute(text("SHOW server_version")).scalar_one()).split()[0]
    return str(tx.execute(text("SELECT sqlite_version()")).scalar_one())


def lock_migrations(tx: Tx) -> None:
    """Wait until no other process migrates this database. On SQLite the file's own lock has done that."""
    if product(tx) == "postgresql":
        tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})


class WrongEncoding(Exception):
    """The database cannot hold every text."""


def check_encoding(tx: Tx) -> None:
    """Refuse a PostgreSQL database that is not UTF-8."""
    if product(tx) == "postgresql":
        encoding = tx.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise WrongEncoding(f"its encoding is {encoding}, and it must be UTF8")


class Damaged(Exception):
    """The database cannot read what it has stored."""


def check_file(tx: Tx) -> None:
    """Refuse a file of SQLite that is damaged; PostgreSQL has tools of its own for that."""
    if product(tx) == "sqlite":
        found = tx.execute(text("PRAGMA quick_check(1)")).scalar_one()
        if found != "ok":
            raise Damaged(f"it is damaged: {' '.join(found.split())}")


def draw_numbers(tx: Tx, count: int) -> list[int]:
    """Numbers for fences and tasks, never issued before and never again. A rollback loses some on PostgreSQL."""
    return drawn(count, tx.execute(draw_sql(product(tx)), {"count": count}).all())


@cache
def draw_sql(product: str) -> Any:
    """The statement of `draw_numbers`."""
    count = bindparam("count", type_=Integer())
    if product == "postgresql":
        return select(func.nextval(literal_column("'fences'")).label("number")).select_from(
            func.generate_series(1, count)
        )
    return update(fence_counter).values(last=fence_counter.c.last + count).returning(fence_counter.c.last)


def drawn(count: int, rows: Sequence[Any]) -> list[int]:
    """The numbers, from the rows of the statement: each in one, or of all of them the last."""
    last = rows[-1][0]
    return [row[0] for row in rows] if len(rows) == count else list(range(last - count + 1, last + 1))


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column, in a shape that no index serves: where a young table without statistics would mislead the planner."""
    return column.concat("") if isinstance(column.type, Text) else column + literal_column("0")


def octets(product: str, columns: Iterable[ColumnElement[Any]]) -> ColumnElement[int]:
    """How many bytes these texts have together, which is known without reading them."""
    total: ColumnElement[int] = literal(0)
    for one in columns:
        bytes_of = func.octet_length(one) if product == "postgresql" else func.length(cast(one, LargeBinary))
        total = total + func.coalesce(bytes_of, 0)
    return total.label("octets")


PAYLOADS = ("params", "output", "result", "payload", "reply", "body_hash")
"""Columns that can be large, or are bytes. They come in a parameter of their own, one behind the other, and a row has
the place of its part. Inside the text of the rows they would be copied for every column."""


def rows(product: str, name: str, /, **columns: TypeEngine[Any]) -> FromClause:
    """A table made of one bound parameter, so that a batch of any size is one statement with one text.

    The parameter is called `name` and holds what `as_rows` made; with payloads `with_payloads` makes both.
    """
    read = _records if product == "postgresql" else _elements
    places = {f"{key}_{part}": Integer() for key in columns if key in PAYLOADS for part in ("at", "size")}
    given = read(name, {key: type_ for key, type_ in columns.items() if key not in PAYLOADS} | places)
    if not places:
        return given
    texts = bindparam(f"{name}_payloads", type_=LargeBinary())

    def text_of(key: str) -> ColumnElement[Any]:
        part = func.substr(texts, given.c[f"{key}_at"], given.c[f"{key}_size"])
        if isinstance(columns[key], LargeBinary):
            return type_coerce(part, LargeBinary()).label(key)
        whole = func.convert_from(part, literal_column("'UTF8'")) if product == "postgresql" else cast(part, Text)
        return type_coerce(whole, Text()).label(key)

    return select(*(text_of(key) if key in PAYLOADS else given.c[key] for key in columns)).subquery(f"{name}_whole")


def _records(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    described = [column(key, type_) for key, type_ in columns.items()]
    records = func.json_to_recordset(cast(bindparam(name, type_=Text()), postgresql.JSON))
    return records.table_valued(*described, name=name).render_derived(name=name, with_types=True)


def _elements(name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    each = func.json_each(bindparam(name, type_=Text())).table_valued("value", name=f"{name}_json")
    parts = [
        type_coerce(func.json_extract(each.c.value, f"$.{key}"), type_).label(key) for key, type_ in columns.items()
    ]
    return select(*parts).select_from(each).subquery(name)


def as_rows(items: Iterable[Mapping[str, Any]]) -> str:
    """The value of a `rows` parameter."""
    return orjson.dumps(list(items)).decode()


def with_payloads(name: str, items: Iterable[Mapping[str, Any]]) -> dict[str, str | bytes]:
    """The parameters of `rows` with payloads, whose texts are bytes."""
    texts = BytesIO()  # one is copied while it is added, and then let go
    given = []
    for item in items:
        row = dict(item)
        for key in PAYLOADS:
            text = row.pop(key, None)
            if text is not None:
                row |= {f"{key}_at": texts.tell() + 1, f"{key}_size": texts.write(text)}
        given.append(row)
    return {name: as_rows(given), f"{name}_payloads": texts.getvalue()}


# ---- lookups
#
# PostgreSQL keeps the plan of the sixth execution. If a table is nearly empty then, a join looks as cheap without an
# index condition as with one, and the plan stays when the table has grown. So no statement joins a table with parameter
# rows or with another table. It looks rows up, in one of these shapes, which leave the planner no choice.


def among(product: str, column: ColumnElement[Any], wanted: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a key is one of the wanted: for statements that lock, read or delete by one column."""
    if product == "postgresql":
        return column == func.any(func.array(select(wanted).scalar_subquery()))
    return column.in_(select(wanted))


def look_up(
    product: str,
    given: FromClause,
    table: Table,
    *same: ColumnElement[bool],
    outer: bool = False,
    lock: Mapping[str, Any] | None = None,
) -> tuple[FromClause, FromClause]:
    """Join each given row with its rows of a table. Returns the join, and these rows to select from.

    With `lock` each is locked as it is found, in the order of the given rows: for locks that never wait.
    """
    if product != "postgresql":
        return given.join(table, and_(*same), isouter=outer), table
    mine = fenced(product, select(table).where(*same))
    found = (mine if lock is None else mine.with_for_update(**lock)).lateral(table.name)
    return given.join(found, true(), isouter=outer), found


def fenced(product: str, inner: Select[Any]) -> Select[Any]:
    """A subquery that PostgreSQL plans by itself, once the row is there that it is asked for."""
    return inner.offset(literal_column("0")) if product == "postgresql" else inner


def overwrite(product: str, table: Table, given: FromClause, *keys: str) -> tuple[Update, Any]:
    """An UPDATE with values per row, and the columns to take them from.

    For rows whose lock the transaction holds: they are found by their places, and a row that another transaction moves
    would be left as it is. A statement that waits for locks itself tells rows apart by `among`, which is judged again
    when the lock is there.
    """
    if product != "postgresql":
        return update(table).where(*_same(table, given, *keys)), given.c
    is_there, new = _placed(table, given, *keys)
    return update(table).where(is_there), new


def erase(product: str, table: Table, given: FromClause, *keys: str) -> Delete:
    """A DELETE by several keys, of rows that an earlier statement of the transaction has locked, as for `overwrite`."""
    if product != "postgresql":
        return delete(table).where(tuple_(*(table.c[key] for key in keys)).in_(select(*(given.c[key] for key in keys))))
    is_there, _ = _placed(table, given, *keys)
    return delete(table).where(is_there)


def _placed(table: Table, given: FromClause, *keys: str) -> tuple[ColumnElement[bool], Any]:
    """Whether a row is one of the given, told by its place on PostgreSQL, and the columns that are given."""
    place: ColumnElement[Any] = column("ctid", _selectable=table)
    same = _same(table, given, *keys)
    places = fenced("postgresql", select(place.label("place")).where(*same)).lateral("places")
    placed = select(places.c.place, *given.c).select_from(given.join(places, true())).subquery("placed")
    return place == placed.c.place, placed.c


def _same(table: Table, given: FromClause, *keys: str) -> list[ColumnElement[bool]]:
    return [table.c[key] == given.c[key] for key in keys]
