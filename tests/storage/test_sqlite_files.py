"""The files of SQLite: whose they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import make_url

from stepwell_server.databases import open_database
from stepwell_server.storage.database import migrate


@pytest.mark.parametrize("there_before", [False, True])
async def test_only_the_owner_can_read_the_database_and_what_lies_beside_it(tmp_path: Path, there_before: bool) -> None:
    file = tmp_path / "stepwell.db"
    if there_before:
        file.touch(0o644)

    db = open_database(make_url(f"sqlite:///{file}"))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    modes = {path: oct(os.stat(path).st_mode & 0o777) for path in (str(file), f"{file}-wal", f"{file}-shm")}
    await db.close()

    assert set(modes.values()) == {"0o600"}
