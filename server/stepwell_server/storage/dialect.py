"""The only reader of `dialect.name` besides the clock: statements that the two databases spell differently."""

from __future__ import annotations

from sqlalchemy import Table, text
from sqlalchemy.dialects import postgresql, sqlite

from stepwell_server.storage.database import Tx

MIGRATION_LOCK = 0x57E9_3E11
"""Key of the advisory lock that lets one process migrate a PostgreSQL database at a time."""


def insert(tx: Tx, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that knows ON CONFLICT, in the words of the transaction's database."""
    if tx.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def product(tx: Tx) -> str:
    """Which database it is: "sqlite" or "postgresql"."""
    return tx.dialect.name


def version(tx: Tx) -> str:
    """The database's own version, such as "18.1" or "3.45.1"."""
    if tx.dialect.name == "postgresql":
        return str(tx.execute(text("SHOW server_version")).scalar_one()).split()[0]
    return str(tx.execute(text("SELECT sqlite_version()")).scalar_one())


def lock_migrations(tx: Tx) -> None:
    """Wait until no other process migrates this database. On SQLite the file's own lock has done that."""
    if tx.dialect.name == "postgresql":
        tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
