"""Bring a database to the newest schema, safely from any number of processes at once."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from stepwell_server.storage import dialect, server
from stepwell_server.storage.database import Tx

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(tx: Tx, *, virtual_clock: bool) -> None:
    """Apply what is missing and give a new database its identity; others that try meanwhile wait, and find it done."""
    dialect.lock_migrations(tx)
    command.upgrade(configuration(tx), "head")
    server.create(tx, virtual_clock=virtual_clock)


def configuration(tx: Tx) -> Config:
    """Alembic's configuration for this transaction: everything happens in it, or nothing."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = tx
    return config
