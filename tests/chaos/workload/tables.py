"""The tables at the end of a run, whichever primitive they belong to."""

from __future__ import annotations

import sqlite3
from typing import Any

import asyncpg
from sqlalchemy import make_url

from tests.chaos.facts.fact import Row, key_of
from tests.chaos.facts.tasks import TaskRow


async def fetch(url: str, sql: str) -> list[Row]:
    """The rows of a query on either database."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        connection = sqlite3.connect(parsed.database or "", timeout=10)
        connection.row_factory = sqlite3.Row
        rows: list[Any] = connection.execute(sql).fetchall()
        connection.close()
    else:
        database = await asyncpg.connect(url)
        rows = await database.fetch(sql)
        await database.close()
    return [dict(row) for row in rows]


async def tasks(url: str, now_us: int) -> list[TaskRow]:
    """All tasks, as of a time of the database's clock."""
    rows = await fetch(url, "SELECT * FROM tasks")
    return [TaskRow(key_of(row["namespace"], row["name"], row["key"]), now_us, row) for row in rows]
