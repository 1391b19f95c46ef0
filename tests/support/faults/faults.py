"""Faults on demand: a backend that errs, delays, loses conflicts, or does the work and then says that it failed.

By seed, per label of the transaction: the same seed gives the same faults for the same sequence of transactions.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from stepwell_server.storage.database.database import CommitUnknown, Database, Fault, T, Tx, TxOptions, Work


class Injected(Exception):
    """The database went away before the transaction began, or so it seems."""


class InjectedConflict(Exception):
    """The transaction lost against another, when all its work was done. PostgreSQL raises its own error for that."""


CONFLICTS = ("40001", "40P01")
"""Serialization failure, deadlock."""


@dataclass(frozen=True)
class Rates:
    """How often each fault happens, from 0 to 1."""

    error: float = 0.0
    conflict: float = 0.0
    delay: float = 0.0
    execute_then_fail: float = 0.0


@dataclass
class FaultyBackend:
    """A real backend with faults around it."""

    inner: Any
    rates: dict[str, Rates]
    seed: int = 0
    fired: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    async def attempt(self, work: Work[T], options: TxOptions) -> T:
        """Run the transaction, perhaps with a fault before or after it."""
        rates = self.rates.get(options.label) or self.rates.get("*") or Rates()
        if self._happens("error", rates.error):
            raise Injected
        if self._happens("delay", rates.delay):
            await asyncio.sleep(self._random.uniform(0, 0.01))
        if self._happens("conflict", rates.conflict):
            work = _losing(work, self._random.choice(CONFLICTS))
        result: T = await self.inner.attempt(work, options)
        if self._happens("execute_then_fail", rates.execute_then_fail):
            raise CommitUnknown
        return result

    async def attempt_unhurried(self, work: Work[T]) -> T:
        """Migrations are left alone."""
        result: T = await self.inner.attempt_unhurried(work)
        return result

    def classify(self, error: BaseException) -> Fault:
        """Injected errors are outages, or conflicts."""
        if isinstance(error, Injected):
            return Fault.DISCONNECTED
        if isinstance(error, InjectedConflict):
            return Fault.CONFLICT
        fault: Fault = self.inner.classify(error)
        return fault

    async def close(self) -> None:
        """Close the real one."""
        await self.inner.close()

    def _happens(self, fault: str, rate: float) -> bool:
        happens = self._random.random() < rate
        self.fired[fault] += happens
        return happens


def _losing(work: Work[T], state: str) -> Work[T]:
    def losing(tx: Tx) -> T:
        work(tx)
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END $$"))
        raise InjectedConflict

    return losing


def faulty(db: Database, seed: int, **rates: Rates) -> tuple[Database, FaultyBackend]:
    """The same database with faults; `group=Rates(...)` for one label, `every=Rates(...)` for all others."""
    named = {("*" if label == "every" else label.replace("_", "-")): one for label, one in rates.items()}
    backend = FaultyBackend(db.backend, named, seed)
    return Database(backend, db.failpoints), backend


def damage(file: Path, table: str) -> None:
    """Write nonsense over the first page of a table and of its indexes, in a file of SQLite that nobody serves."""
    with closing(sqlite3.connect(file)) as connection:
        pages = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = ?", (table,)).fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as damaged:
        for (page,) in pages:
            damaged.seek((page - 1) * size)
            damaged.write(b"\xff" * size)
