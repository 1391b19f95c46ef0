"""Bring a database to the newest schema, safely from any number of processes at once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from stepwell_server.storage import deployments as server
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx

MIGRATIONS = Path(__file__).parents[1] / "migrations"


class SchemaMissing(Exception):
    """The database's schema is not there, or older than this server needs."""


def upgrade(tx: Tx, *, virtual_clock: bool) -> None:
    """Apply what is missing and give a new database its identity; others that try meanwhile wait, and find it done."""
    dialect.lock_migrations(tx)
    dialect.check_encoding(tx)
    found = _revision(tx)
    if _is_newer(found):  # what newer servers have added leaves this one working: see CONTRIBUTING
        return
    if found != _script().get_current_head():
        command.upgrade(configuration(tx), "head")
    server.create(tx, virtual_clock=virtual_clock)


def check(tx: Tx) -> None:
    """Refuse a database that lacks what this server needs."""
    found, needed = _revision(tx), _script().get_current_head()
    if found is None or (found != needed and not _is_newer(found)):
        state = "has no schema" if found is None else f"is at schema {found}, and this server needs {needed}"
        raise SchemaMissing(f"it {state}; run `stepwell migrate`")


def configuration(tx: Tx) -> Config:
    """Alembic's configuration for this transaction: everything happens in it, or nothing."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = tx
    return config


def _revision(tx: Tx) -> str | None:
    """The schema that the database has. None: none at all."""
    return MigrationContext.configure(tx).get_current_revision()


def _is_newer(revision: str | None) -> bool:
    """True if a newer server has migrated the database to a schema that this one does not know."""
    return revision is not None and revision not in {one.revision for one in _script().walk_revisions()}


@cache
def _script() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS))
