"""Rows of declarations: every definition that a handler ever had, and which of them is in force."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Select, Text, Update, func, select, true

from stepwell_server.domain.spine.definitions import Declaration, Definition
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import declarations, handlers
from stepwell_server.storage.spine.handlers import COLUMNS, as_row, as_rows, columns_of, from_row, same_handler

_KEY = {**COLUMNS, "hash": Text()}


@dataclass(slots=True)
class Declared:
    """All declarations of a handler, and the hash in force."""

    in_force: str | None
    all: list[Declaration] = field(default_factory=list)


def unknown(tx: Tx, defined: Mapping[Handler, Definition]) -> set[Handler]:
    """Handlers that were never declared like this."""
    hashes = {handler: definition.hash for handler, definition in defined.items()}
    return defined.keys() - read(tx, hashes).keys()


def read(tx: Tx, hashes: Mapping[Handler, str]) -> dict[Handler, Definition]:
    """The declared definitions of these hashes, one of each handler."""
    found = tx.execute(_read_sql(dialect.product(tx)), {"wanted": _pairs(hashes.items())})
    return {from_row(row): Definition(row.definition, row.hash) for row in found}


@cache
def _read_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY)
    same = [same_handler(declarations.c, wanted.c), declarations.c.hash == wanted.c.hash]
    joined, mine = dialect.look_up(product, wanted, declarations, *same)
    return select(*columns_of(mine.c), mine.c.hash, mine.c.definition).select_from(joined)


def add(tx: Tx, defined: Mapping[Handler, Definition], *, put: bool) -> None:
    """Declare definitions, by a put or else by a worker, of handlers whose rows are locked. They are the newest now."""
    numbers = dialect.draw_numbers(tx, len(defined))
    rows = [
        as_row(handler)
        | {"hash": one.hash, "definition": one.text, "first_seen": number, "put": number if put else None}
        for (handler, one), number in zip(defined.items(), numbers, strict=True)
    ]
    tx.execute(_add_sql(dialect.product(tx)), {"fresh": dialect.as_rows(rows)})


@cache
def _add_sql(product: str) -> Any:
    columns = {**_KEY, "definition": Text(), "first_seen": BigInteger(), "put": BigInteger()}
    fresh = dialect.rows(product, "fresh", **columns)
    statement = dialect.insert(product, declarations).from_select([*columns], select(fresh).where(true()))
    newest = func.coalesce(statement.excluded.put, declarations.c.put)
    return statement.on_conflict_do_update(index_elements=[*_KEY], set_={"put": newest})


# ---- in force


def bring_into_force(tx: Tx, defined: Mapping[Handler, Definition]) -> None:
    """Copy definitions to the rows of their handlers, which are locked: that is all that others read."""
    rows = [
        as_row(handler) | {"definition": one.text, "hash": one.hash, "description": one.settings.get("description", "")}
        for handler, one in defined.items()
    ]
    tx.execute(_bring_sql(dialect.product(tx)), {"fresh": dialect.as_rows(rows)})


@cache
def _bring_sql(product: str) -> Update:
    fresh = dialect.rows(product, "fresh", **_KEY, definition=Text(), description=Text())
    statement, new = dialect.overwrite(product, handlers, fresh, *COLUMNS)
    return statement.values(definition=new.definition, definition_hash=new.hash, description=new.description)


def contested(tx: Tx, hosted: Mapping[Handler, Collection[str]]) -> set[Handler]:
    """Handlers of which a worker hosts another definition than the one in force."""
    pairs = _pairs((handler, one) for handler, hashes in hosted.items() for one in hashes)
    return {from_row(row) for row in tx.execute(_contested_sql(dialect.product(tx)), {"wanted": pairs})}


@cache
def _contested_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY)
    other = handlers.c.definition_hash.is_distinct_from(wanted.c.hash)
    joined, mine = dialect.look_up(product, wanted, handlers, same_handler(handlers.c, wanted.c), other)
    return select(*columns_of(mine.c)).select_from(joined)


def of(tx: Tx, wanted: Collection[Handler]) -> dict[Handler, Declared]:
    """All declarations of these handlers."""
    found: dict[Handler, Declared] = {}
    for row in tx.execute(_of_sql(dialect.product(tx)), {"wanted": as_rows(wanted)}) if wanted else ():
        declared = found.setdefault(from_row(row), Declared(row.definition_hash))
        declared.all.append(Declaration(row.hash, row.first_seen, row.put))
    return found


@cache
def _of_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    named, mine = dialect.look_up(product, wanted, handlers, same_handler(handlers.c, wanted.c))
    joined, all_ = dialect.look_up(product, named, declarations, same_handler(declarations.c, mine.c))
    columns = [*columns_of(mine.c), mine.c.definition_hash, all_.c.hash, all_.c.first_seen, all_.c.put]
    return select(*columns).select_from(joined)


def lock(tx: Tx, wanted: Iterable[Handler]) -> list[Handler]:
    """Lock the rows of these handlers, as far as no other transaction has, so that their definitions can change."""
    return [from_row(row) for row in tx.execute(_lock_sql(dialect.product(tx)), {"wanted": as_rows(wanted)})]


@cache
def _lock_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **COLUMNS)
    free = {"skip_locked": True, "key_share": True}
    joined, mine = dialect.look_up(product, wanted, handlers, same_handler(handlers.c, wanted.c), lock=free)
    return select(*columns_of(mine.c)).select_from(joined)


def _pairs(of: Iterable[tuple[Handler, str]]) -> str:
    return dialect.as_rows(as_row(handler) | {"hash": one} for handler, one in of)
