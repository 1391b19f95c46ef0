"""Plans: what a database does for a function, statement by statement, and how much work that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import event, make_url

from stepwell_server.databases import open_database
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx

Plan: TypeAlias = dict[str, Any]


async def opened(url: str) -> Database:
    """A migrated database."""
    db = open_database(make_url(url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    return db


def statements(tx: Tx, work: Callable[[Tx], object]) -> list[tuple[str, Any]]:
    """What the function asks of the database, with parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_tx: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(tx, "before_cursor_execute", note)
    work(tx)
    event.remove(tx, "before_cursor_execute", note)
    return seen


def explained(tx: Tx, work: Callable[[Tx], None], mode: str) -> list[Plan]:
    """What PostgreSQL does for each statement of the function, as the driver has prepared it."""
    tx.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
    plans = []
    for statement, parameters in statements(tx, work):
        plans.append(explain_prepared(tx, statement, parameters))
    return plans


def explain_prepared(tx: Tx, statement: str, parameters: Sequence[Any]) -> Plan:
    """What PostgreSQL does for a statement that the driver has prepared on this connection. It is executed."""
    prepared = "SELECT name FROM pg_prepared_statements WHERE statement = $1"
    name = tx.exec_driver_sql(prepared, (statement,)).scalar_one()
    values = f"({', '.join(map(_literal, parameters))})" if parameters else ""
    found = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}{values}").scalar_one()
    plan: Plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + _text(value).replace("'", "''") + "'"


def _text(value: Any) -> str:
    """A value as PostgreSQL reads it from text."""
    if isinstance(value, list):
        return "{" + ",".join("NULL" if one is None else _quoted(_text(one)) for one in value) + "}"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def _quoted(element: str) -> str:
    escaped = element.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def nodes(plan: Plan) -> list[Plan]:
    """A plan with all its parts."""
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


def steps(tx: Tx, work: Callable[[Tx], None]) -> int:
    """How many instructions of its virtual machine SQLite executes for the function."""
    connection: Any = tx.connection.dbapi_connection
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1

    connection.set_progress_handler(step, 1)
    work(tx)
    connection.set_progress_handler(None, 1)
    return taken
