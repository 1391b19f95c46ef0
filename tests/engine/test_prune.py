"""What is old is deleted, all of it, a batch at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select, update

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.times import DAY
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.loops import prune
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.schema import handlers as handler_table
from stepwell_server.storage.schema import requests
from stepwell_server.storage.spine import handlers, sessions
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import background


def remember(tx: Tx, *ages: int) -> None:
    """Store replies to requests of these times."""
    row = {"namespace": "default", "principal": "p", "method": "m", "body_hash": b"", "reply": "null"}
    rows = [row | {"request_id": f"r{number}", "created_at": at} for number, at in enumerate(ages)]
    tx.execute(insert(requests), rows)


async def left_after_a_round(db: Database, table: Table, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows of a table a round leaves."""
    left: list[int] = []
    is_over = asyncio.Event()

    def look(tx: Tx) -> Any:
        left.append(tx.execute(select(func.count()).select_from(table)).scalar_one())
        is_over.set()

    monkeypatch.setattr(sessions, "delete_gone", look)  # the end of a round
    rounds = prune.prune(db, Kinds.of(), 30 * DAY, Tuning(prune_interval=0.0, prune_batch=2))
    async with background(rounds), asyncio.timeout(PATIENCE):
        await is_over.wait()
    return left[0]


async def test_replies_of_one_instant_end_no_round_early(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted together, and then it is more than a batch."""
    await db.run_tx(lambda tx: remember(tx, 1, 1, 1, 2, 3))

    assert await left_after_a_round(db, requests, monkeypatch) == 0


async def test_names_without_use_are_forgotten_in_every_round(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Handler("default", TaskKind.WORKFLOW, f"w{number}") for number in range(5)]
    await db.run_tx(lambda tx: handlers.register(tx, names))
    await db.run_tx(lambda tx: tx.execute(update(handler_table).values(used_at=0)))
    await db.run_tx(lambda tx: handlers.note(tx, names[:2]))

    assert await left_after_a_round(db, handler_table, monkeypatch) == 2
