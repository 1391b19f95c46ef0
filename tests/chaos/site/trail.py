"""The server's trail, written by the database itself: triggers note every version of the rows that runs are made of.

The server knows nothing of it, so a bug of the server cannot hide there. What was rolled back is not in it. The changes
to one instance come in the order of their commits, as whoever writes has its task locked.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import asyncpg
from sqlalchemy import make_url

from tests.chaos.facts.tasks import Change

TABLES = ("tasks", "workflow_instances", "workflow_steps", "workflow_events")
CHANGES = ("insert", "update", "delete")

_POSTGRESQL = """
CREATE TABLE chaos_trail (
    seq bigserial PRIMARY KEY, at_us bigint NOT NULL, tx bigint NOT NULL,
    "table" text NOT NULL, change text NOT NULL, "row" text NOT NULL
);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_trail (at_us, tx, "table", change, "row") VALUES (
        extract(epoch FROM clock_timestamp()) * 1000000, pg_current_xact_id()::text::bigint,
        TG_TABLE_NAME, lower(TG_OP), CASE TG_OP WHEN 'DELETE' THEN to_json(OLD)::text ELSE to_json(NEW)::text END
    );
    RETURN NULL;
END $$;
"""
_SQLITE = """
CREATE TABLE chaos_trail (
    seq integer PRIMARY KEY AUTOINCREMENT, at_us integer NOT NULL, tx integer NOT NULL,
    "table" text NOT NULL, change text NOT NULL, "row" text NOT NULL
);
"""
_SELECT = 'SELECT seq, at_us, tx, "table", change, "row" FROM chaos_trail ORDER BY seq'


async def install(url: str) -> None:
    """Note every change from now on. The server must have made its tables."""
    path = _sqlite_path(url)
    if path is not None:
        _install_sqlite(path)
        return
    connection = await asyncpg.connect(url)
    try:
        triggers = (
            f"CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION chaos_note();"
            for table in TABLES
        )
        await connection.execute(_POSTGRESQL + "\n".join(triggers))
    finally:
        await connection.close()


async def read(url: str) -> list[Change]:
    """Everything that was noted, the oldest first. On SQLite transactions have no number: it is 0."""
    path = _sqlite_path(url)
    if path is not None:
        connection = sqlite3.connect(path, timeout=10)
        rows = connection.execute(_SELECT).fetchall()
        connection.close()
    else:
        database = await asyncpg.connect(url)
        rows = await database.fetch(_SELECT)
        await database.close()
    return [Change(seq, at, tx, table, change, json.loads(row)) for seq, at, tx, table, change, row in rows]


def _install_sqlite(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    triggers = [_sqlite_trigger(connection, table, change) for table in TABLES for change in CHANGES]
    connection.executescript(f"BEGIN IMMEDIATE; {_SQLITE} {' '.join(triggers)} COMMIT;")
    connection.close()


def _sqlite_trigger(connection: sqlite3.Connection, table: str, change: str) -> str:
    """The trigger for one kind of change. The server's connections bring the clock."""
    which = "OLD" if change == "delete" else "NEW"
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    row = ", ".join(f"'{name}', {which}.\"{name}\"" for name in columns)
    return (
        f"CREATE TRIGGER chaos_{table}_{change} AFTER {change} ON {table} BEGIN "
        'INSERT INTO chaos_trail (at_us, tx, "table", change, "row") '
        f"VALUES (stepwell_real_clock(), 0, '{table}', '{change}', json_object({row})); END;"
    )


def _sqlite_path(url: str) -> Path | None:
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
