"""Servers of two versions on one database: kinds that only the newer one knows are none of the older one's business."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from sqlalchemy import make_url, update

from stepwell_server.domain.spine.tasks import NewTask
from stepwell_server.storage import schema as tables
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.hints import CHANNEL, Hint, PostgresqlHints
from stepwell_server.storage.spine import handlers, sessions
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.sessions import Session
from tests.support.databases.postgres import execute
from tests.support.replicas import tickets
from tests.support.replicas.spine import ANNA, BEN, ORDER, Spine, sweep_of

NEWER = "of-a-newer-server"


@pytest.fixture
async def beside(spine: Spine) -> Spine:
    """Beside a newer server: it has a handler, a session, and tasks, one of them held and lapsed."""
    mine = await spine.schedule("mine")
    theirs = [await spine.schedule(key) for key in ("theirs", "held")]
    await spine.claim(ANNA, 1)
    session = Session(ANNA.session_id, "default", "w", "", "replica", {ORDER: "hash"})

    def rename(tx: Tx) -> None:
        number = sessions.connect(tx, session)
        both = json.dumps([[NEWER, "order"], ["workflow", "order"]])
        tx.execute(update(tables.sessions).values(handlers=both, connection=number))
        handlers.note(tx, [ORDER])
        copied = dict.fromkeys(["kind"], NEWER)
        tx.execute(update(tables.tasks).where(tables.tasks.c.id.in_([one.id for one in theirs])).values(copied))
        held = {"status": "processing", "session_id": ANNA.session_id, "connection": 1, "locked_until": 1}
        tx.execute(update(tables.tasks).where(tables.tasks.c.id == theirs[1].id).values(held))
        row = {"namespace": "default", "kind": NEWER, "name": "order", "is_paused": False, "created_at": 0}
        tx.execute(tables.handlers.insert().values(row))

    await spine.db.run_tx(rename)
    assert mine.id
    return spine


async def test_what_a_newer_server_stores_stops_no_sweep_and_is_left_alone(beside: Spine) -> None:
    before = [row for row in await beside.rows() if row.kind == NEWER]
    await beside.pass_lease_time(3600)
    await beside.tick()
    before = [row for row in await beside.rows() if row.kind == NEWER]

    swept = await sweep_of(beside.replica).once()

    assert swept is not None
    assert [task.key for task in swept.lapsed] == ["mine"]
    assert {wake.handler for wake in swept.wakes} == {ORDER}
    assert swept.served == {ORDER}
    assert [row for row in await beside.rows() if row.kind == NEWER] == before


async def test_calls_do_not_meet_what_a_newer_server_stores(beside: Spine) -> None:
    theirs = [row.id for row in await beside.rows() if row.kind == NEWER]

    def look(tx: Tx) -> list[object]:
        held = [task.key for task in store.held(tx)]
        of_anna = [one.key for one in sessions.held_by(tx, [ANNA.session_id])]
        locked = [task.key for task in store.lock_held(tx, ANNA.session_id)]
        return [held, of_anna, locked, store.get(tx, theirs), store.lock(tx, theirs, waiting=True)]

    assert await beside.db.run_tx(look) == [["mine"], ["mine"], ["mine"], {}, {}]
    assert not await beside.submit(tickets.Wake(theirs[0], priority=0))
    assert await beside.submit(tickets.Schedule(NewTask(ORDER, "another"))) is not None
    assert [task.key for task in await beside.claim(BEN, 5)] == ["another"]


async def test_hints_of_a_newer_server_are_heard_as_far_as_they_are_understood(postgres_url: str) -> None:
    heard = list[Hint]()
    hints = PostgresqlHints(make_url(postgres_url))
    listening = asyncio.create_task(hints.listen(heard.append))
    while not hints.working:
        await asyncio.sleep(0.001)
    names = [["default", NEWER, "order"], ["default", "workflow", "order"]]
    for said in (
        ["other", names, [1], [], ["default", [NEWER, "workflow"], [], 5, 0]],
        ["other", names[:1], [], [], ["default", [NEWER], [], 5, 0]],
    ):
        execute(postgres_url, f"SELECT pg_notify('{CHANNEL}', '{json.dumps(said)}')")
    while len(heard) < 3:
        await asyncio.sleep(0.001)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening

    _, one, other = heard
    assert (one.handlers, one.tasks) == (frozenset([ORDER]), frozenset([1]))
    assert one.order is not None and one.order.wanted.kinds == {ORDER.kind}
    assert (other.handlers, other.order) == (frozenset(), None)
