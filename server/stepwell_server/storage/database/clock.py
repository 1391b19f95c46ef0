"""The two clocks, as SQL expressions in epoch microseconds. No other clock decides anything.

`db_now()` is the clock of everything users see; on a virtual-clock database it is a row that AdvanceClock moves.
`lease_now()` is always real: leases, acknowledgements and graces follow it, so that a dead worker is noticed even
while virtual time stands still.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.sqlite import REAL_CLOCK
from stepwell_server.storage.schema.deployment import clock

_THE_ROW = clock.c.id == 1


class lease_now(FunctionElement[int]):
    """Real epoch microseconds by the database's clock, at the moment the expression is evaluated."""

    type = BigInteger()
    inherit_cache = True


class db_now(FunctionElement[int]):
    """Epoch microseconds by the clock that decides: the virtual time if this database has one, else real time.

    A subquery, so that PostgreSQL evaluates it once per statement and can use it as an index bound.
    """

    type = BigInteger()
    inherit_cache = True


@compiles(lease_now, "postgresql")
def _lease_now_postgresql(element: lease_now, compiler: Any, **kw: Any) -> str:
    # clock_timestamp(), never now(): that one is frozen when the transaction begins.
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


@compiles(lease_now, "sqlite")
def _lease_now_sqlite(element: lease_now, compiler: Any, **kw: Any) -> str:
    return f"{REAL_CLOCK}()"


@compiles(db_now)
def _db_now(element: db_now, compiler: Any, **kw: Any) -> str:
    real = compiler.process(lease_now(), **kw)
    return f"(SELECT coalesce((SELECT virtual_now FROM clock WHERE id = 1), {real}))"


def read(tx: Tx) -> ClockReading:
    """Both clocks, now."""
    both = select(db_now(), lease_now(), clock.c.virtual_now.is_not(None))
    row = tx.execute(both.where(_THE_ROW)).one()
    return ClockReading(now=row[0], lease_now=row[1], virtual=bool(row[2]))


def lock(tx: Tx) -> ClockReading:
    """Both clocks, with the virtual one held until the transaction ends: two callers never move it at once."""
    tx.execute(select(clock.c.id).where(_THE_ROW).with_for_update())
    return read(tx)


def move(tx: Tx, now: Micros) -> None:
    """Set the virtual clock."""
    tx.execute(update(clock).where(_THE_ROW).values(virtual_now=now))
