"""What is old is deleted, all of it, a batch at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from stepwell_server.engine.loops import prune
from stepwell_server.storage import sessions
from stepwell_server.storage.database import Database, Tx
from stepwell_server.storage.schema import requests
from tests.support.patience import PATIENCE
from tests.support.runs import background


def remember(tx: Tx, *ages: int) -> None:
    """Store replies to requests of these times."""
    row = {"namespace": "default", "principal": "p", "method": "m", "body_hash": b"", "reply": "null"}
    rows = [row | {"request_id": f"r{number}", "created_at": at} for number, at in enumerate(ages)]
    tx.execute(insert(requests), rows)


async def test_replies_of_one_instant_end_no_round_early(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted together, and then it is more than a batch."""
    left: list[int] = []
    is_over = asyncio.Event()

    def look(tx: Tx) -> Any:
        left.append(tx.execute(select(func.count()).select_from(requests)).scalar_one())
        is_over.set()

    monkeypatch.setattr(prune, "INTERVAL", 0.0)
    monkeypatch.setattr(prune, "BATCH", 2)
    monkeypatch.setattr(sessions, "delete_gone", look)  # the end of a round
    await db.run_tx(lambda tx: remember(tx, 1, 1, 1, 2, 3))

    async with background(prune.prune(db)), asyncio.timeout(PATIENCE):
        await is_over.wait()

    assert left[0] == 0
