"""Where the probe keeps its records: PostgreSQL or SQLite, durable, one transaction at a time for all that waits."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import asyncpg

TABLES = (
    "CREATE TABLE workflows (id BIGINT PRIMARY KEY, shape INT, input {json}, output {json})",
    "CREATE TABLE steps (workflow BIGINT, number INT, output {json}, PRIMARY KEY (workflow, number))",
)
WRITE = """
    WITH births AS (
        INSERT INTO workflows (id, shape, input)
        SELECT id, shape, input::jsonb FROM unnest($1::bigint[], $2::int[], $3::text[]) AS given (id, shape, input)
    ), results AS (
        INSERT INTO steps (workflow, number, output)
        SELECT id, number, output::jsonb FROM unnest($4::bigint[], $5::int[], $6::text[]) AS given (id, number, output)
    )
    UPDATE workflows SET output = given.output::jsonb
    FROM unnest($7::bigint[], $8::text[]) AS given (id, output) WHERE workflows.id = given.id"""
PLANS = {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off", "jit": "off"}
"""Without these the plan of the update, kept while the table was empty, reads the whole table ever after."""


@dataclass
class Group:
    """Records of one transaction, and whom to tell afterwards."""

    births: list[tuple[int, int, str]] = field(default_factory=list)
    results: list[tuple[int, int, str]] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)
    stored: list[Callable[[], None]] = field(default_factory=list)


class Store(Protocol):
    """A database."""

    async def write(self, group: Group) -> None:
        """Commit it."""


class Postgres:
    """One statement with arrays for each group."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, url: str) -> Postgres:
        """Connect and create the tables."""
        store = cls(await asyncpg.connect(url, server_settings=PLANS))
        for table in TABLES:
            await store.connection.execute(table.format(json="JSONB"))
        return store

    async def write(self, group: Group) -> None:
        """Commit it: autocommit of one statement."""
        births, results, ends = _columns(group.births, 3), _columns(group.results, 3), _columns(group.ends, 2)
        await self.connection.execute(WRITE, *births, *results, *ends)


class Sqlite:
    """One transaction in a thread of its own for each group."""

    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        for table in TABLES:
            self.connection.execute(table.format(json="TEXT"))
        self.thread = ThreadPoolExecutor(1)

    async def write(self, group: Group) -> None:
        """Commit it."""
        await asyncio.get_running_loop().run_in_executor(self.thread, self._write, group)

    def _write(self, group: Group) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO workflows (id, shape, input) VALUES (?, ?, ?)", group.births)
        self.connection.executemany("INSERT INTO steps VALUES (?, ?, ?)", group.results)
        ends = [(output, number) for number, output in group.ends]
        self.connection.executemany("UPDATE workflows SET output = ? WHERE id = ?", ends)
        self.connection.execute("COMMIT")


async def open_store(url: str) -> Store:
    """The store of a database's URL."""
    return Sqlite(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else await Postgres.open(url)


class Committer:
    """Writes whatever is pending when the transaction before is over."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending = Group()
        self._filled = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    def birth(self, workflow: int, shape: int, data: str, stored: Callable[[], None]) -> None:
        """Store a workflow."""
        self._pending.births.append((workflow, shape, data))
        self._add(stored)

    def result(self, workflow: int, number: int, output: Any, stored: Callable[[], None]) -> None:
        """Store a step's result, a timer or an event."""
        self._pending.results.append((workflow, number, output if isinstance(output, str) else json.dumps(output)))
        self._add(stored)

    def end(self, workflow: int, output: str, stored: Callable[[], None]) -> None:
        """Store a workflow's result."""
        self._pending.ends.append((workflow, output))
        self._add(stored)

    def _add(self, stored: Callable[[], None]) -> None:
        self._pending.stored.append(stored)
        self._filled.set()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            group, self._pending = self._pending, Group()
            await self._store.write(group)
            for stored in group.stored:
                stored()


def _columns(rows: list[Any], width: int) -> list[list[Any]]:
    return [[row[column] for row in rows] for column in range(width)]
