"""Statements that travel together: what a transaction asks at once costs one round trip, however many statements it is.

On PostgreSQL they go to `together_v1`, which executes one after the other. Each has a snapshot of its own, so what is
locked, stamped and read in this order is as if each had come by itself. Writes are parts of one statement instead, and
see each other no more than the rows that were there before.
"""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import ARRAY, Select, Text, bindparam, func, literal, select, text

from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import LostRace, Tx

Name = TypeVar("Name", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A statement to be asked with others, what it is given, and how its rows are read."""

    build: Callable[[str], Any]
    """Its text for a database product. Built once: the same object each time."""
    given: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Sequence[Any]], T] = field(default=lambda rows: None)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Write:
    """A statement to be written with others: none of them touches a row of another."""

    build: Callable[[str], Any]
    given: Mapping[str, Any]
    stores: int | None = None
    """How many rows it returns, or the race for them is lost. None: it returns none."""


def ask(tx: Tx, asked: Statement[T]) -> T:
    """Ask one statement."""
    return asked.read(tx.execute(asked.build(dialect.product(tx)), asked.given).all())


def ask_together(tx: Tx, asked: Mapping[Name, Statement[Any]]) -> dict[Name, Any]:
    """Ask these statements, one after the other, in one round trip."""
    if dialect.product(tx) != "postgresql" or len(asked) < 2:
        return {name: ask(tx, one) for name, one in asked.items()}
    prepared = [_prepared(tx, one) for one in asked.values()]
    calls = [one.call(statement.given) for one, statement in zip(prepared, asked.values(), strict=True)]
    found: list[list[Any]] = [[] for _ in calls]
    for place, row in tx.execute(_TOGETHER, {"calls": calls}):
        found[place - 1].append(prepared[place - 1].row(row))
    return {name: one.read(rows) for (name, one), rows in zip(asked.items(), found, strict=True)}


_TOGETHER = text("SELECT place, item FROM together_v1(:calls)").bindparams(bindparam("calls", type_=ARRAY(Text)))


def write(tx: Tx, writes: Sequence[Write]) -> None:
    """Write these statements in one round trip. Raises `LostRace` if one of them stored less than it had to."""
    product = dialect.product(tx)
    if product != "postgresql" or len(writes) < 2:
        for one in writes:
            written = tx.execute(one.build(product), one.given)
            _check(one, None if one.stores is None else len(written.all()))
        return
    whole = _combined(tuple((one.build(product), one.stores is not None) for one in writes))
    counts = tx.execute(whole, {name: value for one in writes for name, value in one.given.items()}).one()
    for one, count in zip(writes, counts, strict=True):
        _check(one, count)


def _check(one: Write, count: int | None) -> None:
    if one.stores is not None and count != one.stores:
        raise LostRace


@lru_cache(256)
def _combined(parts: tuple[tuple[Any, bool], ...]) -> Select[Any]:
    """One statement of all these, which returns how many rows each of them stored."""
    written = [statement.cte(f"write_{number}") for number, (statement, _) in enumerate(parts)]
    counts = [
        select(func.count()).select_from(part).scalar_subquery() if counts else literal(0)
        for part, (_, counts) in zip(written, parts, strict=True)
    ]
    return select(*(count.label(f"stored_{number}") for number, count in enumerate(counts))).add_cte(*written)


# ---- PostgreSQL's own prepared statements, to be executed by their names


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A statement that the connection knows by a name."""

    name: str
    text: str
    parameters: Sequence[str | None]
    """By place: what is given under this name, or None of what is always the same."""
    constants: Sequence[str]
    row: Callable[[Sequence[Any]], Any]

    def call(self, given: Mapping[str, Any]) -> str:
        """The text that executes it."""
        values = [
            constant if name is None else _quoted(given[name])
            for name, constant in zip(self.parameters, self.constants, strict=True)
        ]
        return f"EXECUTE {self.name}({', '.join(values)})" if values else f"EXECUTE {self.name}"


def _prepared(tx: Tx, asked: Statement[Any]) -> _Prepared:
    """The statement, prepared on this connection if it was not before."""
    built = asked.build("postgresql")
    one = _PREPARED.get(built)
    if one is None:
        one = _PREPARED[built] = _prepare(tx, built, asked.given)
    known = tx.info.setdefault(_KNOWN, set())
    if one.name not in known:
        tx.exec_driver_sql(f"PREPARE {one.name} AS {one.text}")
        known.add(one.name)
    return one


_KNOWN = "stepwell_prepared"
_PREPARED: dict[Any, _Prepared] = {}
"""By what was built, which is there as long as the process."""
_numbers = itertools.count(1)


def _prepare(tx: Tx, built: Any, given: Mapping[str, Any]) -> _Prepared:
    compiled = built.compile(dialect=tx.dialect)
    state = compiled.construct_expanded_state(dict(given))
    names = state.positiontup or ()
    constants = ["" if name in given else _quoted(state.parameters[name]) for name in names]
    columns = [column.name for column in built.selected_columns]
    row = namedtuple("Row", columns, rename=True)  # type: ignore[misc]  # what it has is known only here
    parameters = [name if name in given else None for name in names]
    return _Prepared(f"stepwell_{next(_numbers)}", state.statement, parameters, constants, row._make)


def _quoted(value: Any) -> str:
    """A value as PostgreSQL reads it, whatever it is told of backslashes."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | int):
        return str(value)
    assert isinstance(value, str), type(value)
    doubled = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{doubled}'"
