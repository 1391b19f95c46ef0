"""Databases that are ready for a test: migrated once and copied for each, as migrating takes longer than most tests."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from alembic import command
from sqlalchemy import make_url

from stepwell_server.databases import open_database
from stepwell_server.storage.database import migrate


def migrate_now(url: str) -> None:
    """Give a database the newest schema, and no identity yet: its first server decides what clock it has."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(_migrate(url))


async def _migrate(url: str) -> None:
    db = open_database(make_url(url))
    await db.run_unhurried(lambda tx: command.upgrade(migrate.configuration(tx), "head"))
    await db.close()


def sqlite_template(folder: Path) -> Path:
    """A file to copy."""
    file = folder / "template.db"
    migrate_now(f"sqlite:///{file}")
    return file


def sqlite_copy(template: Path, folder: Path) -> str:
    """The URL of a copy."""
    return f"sqlite:///{shutil.copy(template, folder / 'stepwell.db')}"
