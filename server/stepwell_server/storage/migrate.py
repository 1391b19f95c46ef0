"""Bring a database to the newest schema, safely from any number of processes at once."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from stepwell_server.storage import dialect, server
from stepwell_server.storage.database import Tx

MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaMissing(Exception):
    """The database's schema is not there, or older than this server needs."""


def upgrade(tx: Tx, *, virtual_clock: bool) -> None:
    """Apply what is missing and give a new database its identity; others that try meanwhile wait, and find it done."""
    dialect.lock_migrations(tx)
    dialect.check_encoding(tx)
    if not _is_newer(tx):  # what newer servers have added leaves this one working: see CONTRIBUTING
        command.upgrade(configuration(tx), "head")
        server.create(tx, virtual_clock=virtual_clock)


def check(tx: Tx) -> None:
    """Refuse a database that lacks what this server needs."""
    found = MigrationContext.configure(tx).get_current_revision()
    needed = _script(tx).get_current_head()
    if found is None or (found != needed and not _is_newer(tx)):
        state = "has no schema" if found is None else f"is at schema {found}, and this server needs {needed}"
        raise SchemaMissing(f"it {state}; run `stepwell migrate`")


def _is_newer(tx: Tx) -> bool:
    """True if a newer server has migrated the database to a schema that this one does not know."""
    found = MigrationContext.configure(tx).get_current_revision()
    return found is not None and found not in {one.revision for one in _script(tx).walk_revisions()}


def _script(tx: Tx) -> ScriptDirectory:
    return ScriptDirectory.from_config(configuration(tx))


def configuration(tx: Tx) -> Config:
    """Alembic's configuration for this transaction: everything happens in it, or nothing."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = tx
    return config
