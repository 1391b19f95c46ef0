"""Replies by request_id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import make_url, select, update

from stepwell_server.databases import open_database
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import IdempotencyKeyReused
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.schema import requests as table
from stepwell_server.storage.spine import requests
from tests.support.databases.postgres import PostgresServer

ASKED = Asked("me", "/Do", "id-1", b"body")


def doing(reply: str, asked: Asked = ASKED, namespace: str = "default") -> Callable[[Tx], str]:
    return lambda tx: requests.once(tx, namespace, asked, lambda: reply, dump=str, load=str)


async def test_the_first_reply_is_the_reply(db: Database) -> None:
    assert await db.run_tx(doing("first")) == "first"
    assert await db.run_tx(doing("second")) == "first"


@pytest.mark.parametrize("part", ["principal", "method", "request_id"])
async def test_another_caller_or_call_has_replies_of_its_own(db: Database, part: str) -> None:
    await db.run_tx(doing("first"))

    assert await db.run_tx(doing("other", replace(ASKED, **{part: "other"}))) == "other"


async def test_a_namespace_has_replies_of_its_own(db: Database) -> None:
    await db.run_tx(doing("first"))

    assert await db.run_tx(doing("other", namespace="other")) == "other"


async def test_without_an_id_everything_is_done(db: Database) -> None:
    nameless = replace(ASKED, request_id="")

    assert [await db.run_tx(doing(word, nameless)) for word in ("a", "b")] == ["a", "b"]


async def test_another_body_is_refused(db: Database) -> None:
    await db.run_tx(doing("first"))

    with pytest.raises(IdempotencyKeyReused):
        await db.run_tx(doing("second", replace(ASKED, body_hash=b"changed")))


async def test_what_was_refused_is_not_remembered(db: Database) -> None:
    def refuse(tx: Tx) -> str:
        return requests.once(tx, "default", ASKED, lambda: 1 / 0, dump=str, load=str)  # type: ignore[arg-type,return-value]

    with pytest.raises(ZeroDivisionError):
        await db.run_tx(refuse)

    assert await db.run_tx(doing("done")) == "done"


async def test_after_a_day_an_id_is_forgotten(db: Database) -> None:
    await db.run_tx(doing("old"))
    await db.run_tx(lambda tx: tx.execute(update(table).values(created_at=table.c.created_at - requests.KEPT)))

    assert await db.run_tx(doing("new", replace(ASKED, body_hash=b"other"))) == "new"
    assert await db.run_tx(lambda tx: len(tx.execute(select(table)).all())) == 1


async def test_a_repetition_in_flight_waits_for_the_first_and_gets_its_reply(
    postgres_url: str, postgres: PostgresServer
) -> None:
    here, there = (open_database(make_url(postgres_url)) for _ in range(2))
    await here.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    inserted = asyncio.Event()

    def first(tx: Tx) -> str:
        def work() -> str:
            inserted.set()
            tx.exec_driver_sql("SELECT pg_advisory_lock_shared(1)")  # held back until the test lets go
            return "first"

        return requests.once(tx, "default", ASKED, work, dump=str, load=str)

    with postgres.advisory_lock(postgres_url, 1):
        running = asyncio.create_task(here.run_tx(first))
        await inserted.wait()
        repeated = asyncio.create_task(there.run_tx(doing("second")))
        await postgres.wait_for_waiters(postgres_url, 2)

    assert (await running, await repeated) == ("first", "first")
    await here.close()
    await there.close()
