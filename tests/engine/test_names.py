"""Names of handlers are forgotten when no worker has hosted them for long and nothing refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import insert, select, update

from stepwell_server.domain.hooks.hooks import HookKey, NewHook
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.asked import NOT_ASKED
from stepwell_server.domain.values.errors import WorkflowNotFound
from stepwell_server.domain.values.pages import PageRequest
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import DAY, HOUR, Micros
from stepwell_server.engine.hooks.hooks import Hooks
from stepwell_server.engine.spine.loops.prune import forget_names
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.hooks import targets
from stepwell_server.storage.schema import handlers as table
from stepwell_server.storage.schema import sessions as session_table
from stepwell_server.storage.spine import handlers, limits, sessions
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.forcing import before_statement, held_before_commit
from tests.support.replicas.runs import ORDER, Engine

KEPT = 30 * DAY
NOTE = Handler("default", TaskKind.HOOK, "note")


async def rounds_of_days(engine: Engine, days: int) -> None:
    """Days go by, in each of which names are looked at."""
    for _ in range(days):
        await engine.advance(DAY)
        await forget_names(engine.db, engine.replica.kinds, KEPT)


async def grown_old(engine: Engine, by: Micros = KEPT + handlers.STALE + HOUR) -> None:
    """Nobody looks at names for long enough that they can go."""
    await engine.advance(by)


async def visit(engine: Engine) -> None:
    """A worker comes and goes, and even its session is gone."""
    connection = await engine.connect()
    await engine.workers.disconnect(connection, goodbye=True)
    await engine.db.run_tx(forget_sessions)


def forget_sessions(tx: Tx) -> None:
    tx.execute(update(session_table).values(seen_at=0))
    sessions.delete_gone(tx)


async def named(engine: Engine) -> list[str]:
    """The workflows that are there."""
    page = await engine.instances.list_workflows("default", PageRequest())
    return [one.name for one in page.items]


async def test_a_name_whose_workers_are_away_stays_for_a_month_and_is_forgotten_a_day_later(engine: Engine) -> None:
    await engine.advance(HOUR)
    await visit(engine)

    await rounds_of_days(engine, 30)
    assert await named(engine) == ["order"]

    await rounds_of_days(engine, 2)
    assert await named(engine) == []
    with pytest.raises(WorkflowNotFound):
        await engine.create()
    with pytest.raises(WorkflowNotFound):
        await engine.send()

    await visit(engine)
    assert await named(engine) == ["order"]
    assert await engine.create()


async def test_a_month_begins_when_the_last_worker_left(engine: Engine) -> None:
    """Its session is all that says so: nothing is written while it lasts, but a note a day."""
    connection = await engine.connect()
    await rounds_of_days(engine, 60)
    await engine.workers.disconnect(connection, goodbye=True)
    await engine.db.run_tx(forget_sessions)

    await rounds_of_days(engine, 30)
    assert await named(engine) == ["order"]

    await rounds_of_days(engine, 2)
    assert await named(engine) == []


async def test_a_name_that_is_hosted_stays_though_nobody_looked_for_months(engine: Engine) -> None:
    await engine.connect()

    await grown_old(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT, batch=2)

    assert await named(engine) == ["order"]


async def test_that_a_name_is_in_use_is_written_once_a_day(engine: Engine) -> None:
    await engine.connect()
    await engine.create()
    written = await used_at(engine)

    await engine.advance(HOUR)
    await forget_names(engine.db, engine.replica.kinds, KEPT)
    await engine.connect()
    await engine.create("y")
    assert await used_at(engine) == written

    await engine.advance(DAY)
    await forget_names(engine.db, engine.replica.kinds, KEPT)
    assert await used_at(engine) == written + HOUR + DAY


async def used_at(engine: Engine) -> Micros:
    """What is written of the use of the name "order"."""
    asked = select(table.c.used_at).where(table.c.name == "order")
    return int(await engine.db.run_tx(lambda tx: tx.execute(asked).scalar_one()))


# ---- what keeps a name


async def ended(engine: Engine) -> None:
    await engine.create()
    await engine.terminate()


async def limited(engine: Engine) -> None:
    await engine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=3))


async def paused(engine: Engine) -> None:
    await engine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=None, is_paused=True))


@pytest.mark.parametrize("keep", [Engine.create, ended, limited, paused])
async def test_a_workflow_with_a_task_history_a_limit_or_a_pause_stays(
    engine: Engine, keep: Callable[[Engine], Awaitable[object]]
) -> None:
    await keep(engine)

    await grown_old(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT, batch=2)

    assert await named(engine) == ["order"]


async def triggered(engine: Engine) -> None:
    new = NewHook(HookKey("default", "h1"), "note", Payload("{}"), "key")
    await Hooks(engine.replica, engine.batches, PageTokens(b"k" * 32)).trigger([(new, NOT_ASKED)])


async def aimed(engine: Engine) -> None:
    await engine.db.run_tx(lambda tx: targets.put(tx, "default", "note", "https://receiver.example.com/", ()))
    await engine.db.run_tx(lambda tx: limits.limit(tx, NOTE, concurrency=None))


async def asked_for(engine: Engine) -> None:
    await engine.replica.registry.name(NOTE)


@pytest.mark.parametrize(("keep", "stays"), [(triggered, True), (aimed, True), (asked_for, False)])
async def test_a_name_of_hooks_stays_with_a_hook_or_a_target(
    engine: Engine, keep: Callable[[Engine], Awaitable[None]], stays: bool
) -> None:
    await keep(engine)

    await grown_old(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT)

    assert await is_known(engine, NOTE) is stays


async def test_names_of_engine_events_and_of_newer_servers_stay(engine: Engine) -> None:
    event, newer = Handler("default", TaskKind.HOOK, "workflow.errored"), {"kind": "newer", "name": "n"}
    row = {"namespace": "default", "is_paused": False, "created_at": 0, "used_at": 0}
    await engine.db.run_tx(lambda tx: handlers.note(tx, [event]))
    await engine.db.run_tx(lambda tx: tx.execute(insert(table).values(**row, **newer)))

    await grown_old(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT)

    assert await is_known(engine, event)
    assert await engine.db.run_tx(lambda tx: tx.execute(table.select().where(table.c.kind == "newer")).all())


async def test_every_name_is_looked_at_however_many_there_are(engine: Engine) -> None:
    many = [Handler("default", TaskKind.WORKFLOW, f"w{number}") for number in range(7)]
    await engine.db.run_tx(lambda tx: handlers.register(tx, many))
    await engine.create()

    await grown_old(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT, batch=2)

    assert await named(engine) == ["order"]


async def is_known(engine: Engine, handler: Handler) -> bool:
    """Whether the name is there."""
    return bool(await engine.db.run_tx(lambda tx: handlers._known(tx, [handler])))


# ---- at the same moment


async def test_a_create_that_looked_a_name_up_before_it_would_be_forgotten_keeps_it(engine: Engine) -> None:
    await grown_old(engine)

    await engine.replica.registry.use(ORDER)
    await forget_names(engine.db, engine.replica.kinds, KEPT)
    await engine.create()

    assert await named(engine) == ["order"]


async def test_a_name_that_is_forgotten_while_a_create_looks_it_up_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there at the first look; the second, which keeps it, does not find it any more."""
    await grown_old(engine)
    require = engine.replica.registry.require

    async def require_and_forget(handler: Handler) -> None:
        await require(handler)
        await forget_names(engine.db, engine.replica.kinds, KEPT)

    monkeypatch.setattr(engine.replica.registry, "require", require_and_forget)
    with pytest.raises(WorkflowNotFound):
        await engine.create()

    assert await named(engine) == []


async def test_a_name_that_is_chosen_to_be_forgotten_stays_if_a_create_looks_it_up_before_it_is_locked(
    replicas: tuple[Engine, Engine],
) -> None:
    here, there = replicas
    await grown_old(here)

    with before_statement(here, "FOR UPDATE", lambda: there.replica.registry.use(ORDER)) as met:
        await forget_names(here.db, here.replica.kinds, KEPT)
    await there.create()

    assert met and await named(here) == ["order"]


async def test_a_create_waits_for_the_verdict_about_its_name(
    replicas: tuple[Engine, Engine], postgres: PostgresServer, postgres_url: str
) -> None:
    here, there = replicas
    await grown_old(here)

    async with held_before_commit(here, forget_names(here.db, here.replica.kinds, KEPT), label="prune"):
        creating = asyncio.create_task(there.create())
        await postgres.wait_for_waiters(postgres_url, 1)

    with pytest.raises(WorkflowNotFound):
        await creating
    assert await named(here) == []


async def test_a_name_that_is_in_use_at_this_moment_is_left_to_the_next_round(
    replicas: tuple[Engine, Engine],
) -> None:
    here, there = replicas
    await grown_old(here)

    async with held_before_commit(there, there.connect(), label="call"):
        await forget_names(here.db, here.replica.kinds, KEPT)

    assert await named(here) == ["order"]


async def test_a_worker_that_comes_while_its_name_is_forgotten_registers_it_anew(
    replicas: tuple[Engine, Engine], postgres: PostgresServer, postgres_url: str
) -> None:
    here, there = replicas
    await grown_old(here)

    async with held_before_commit(here, forget_names(here.db, here.replica.kinds, KEPT), label="prune"):
        coming = asyncio.create_task(there.connect())
        await postgres.wait_for_waiters(postgres_url, 1)

    await coming
    assert await named(here) == ["order"]
    assert await there.create()


@pytest.mark.parametrize("worker_first", [True, False])
async def test_a_worker_that_comes_right_before_or_after_a_round_has_its_name(
    engine: Engine, worker_first: bool
) -> None:
    await grown_old(engine)

    if worker_first:
        await visit(engine)
    await forget_names(engine.db, engine.replica.kinds, KEPT)
    if not worker_first:
        assert await named(engine) == []
        await engine.connect()

    assert await named(engine) == ["order"]
    assert await engine.create()
