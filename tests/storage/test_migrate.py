"""Migrations: safe at once from many processes, and equal to the schema that the code believes in."""

from __future__ import annotations

import asyncio
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from stepwell_server.databases import open_database
from stepwell_server.storage import deployments as server
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.schema import metadata
from tests.support.databases.postgres import PostgresServer


async def test_the_migrated_schema_is_the_one_in_schema_py(db: Database) -> None:
    def differences(tx: Tx) -> list[object]:
        context = MigrationContext.configure(tx, opts={"compare_type": True})
        return [one for one in compare_metadata(context, metadata) if "alembic_version" not in str(one)]

    assert await db.run_unhurried(differences) == []


async def test_migrating_again_changes_nothing(db: Database) -> None:
    before = await db.run_tx(server.read)

    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))

    assert await db.run_tx(server.read) == before


@pytest.mark.parametrize("virtual", [True, False])
async def test_the_kind_of_clock_is_fixed_when_the_database_is_created(database_url: str, virtual: bool) -> None:
    db = open_database(make_url(database_url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=virtual))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=not virtual))
    found = await db.run_tx(server.read)
    await db.close()

    assert found.virtual_clock == virtual
    server.check_clock(found, virtual_clock=virtual)
    with pytest.raises(server.ClockModeMismatch):
        server.check_clock(found, virtual_clock=not virtual)


async def test_four_processes_migrate_one_empty_database_at_once(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    command = [sys.executable, "-m", "stepwell_server", "migrate", "--database", url]

    async def run() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    results = await asyncio.gather(*(run() for _ in range(4)))

    newest = ScriptDirectory(str(migrate.MIGRATIONS)).get_current_head()
    assert results == [(0, f"the database is at schema {newest}\n")] * 4
    assert postgres.execute("SELECT count(*) FROM deployment", url) == "1"
