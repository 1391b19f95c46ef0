"""Definitions in force follow the workers that live, and what was put; over two replicas where there can be two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import delete, func, make_url, select, update

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.definitions import MOST_DECLARED, Definition
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.values.times import HOUR
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.engine.sessions import Hello
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.definitions import declare, put
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.loops.prune import forget_names
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.worker_calls import WorkerCalls
from stepwell_server.engine.workers import Workers
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.hints import Hint
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.schema import declarations as declared_table
from stepwell_server.storage.schema import handlers as handler_table
from stepwell_server.storage.schema import sessions as session_table
from stepwell_server.storage.spine import handlers, sessions
from tests.support.databases.plans import statements
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.forcing import before_statement, held_before_commit
from tests.support.replicas.spine import ORDER, Spine, running

RED, BLUE, GREEN = ({"color": color} for color in ("red", "blue", "green"))


@dataclass
class Site:
    """A replica and the workers that are connected to it."""

    spine: Spine
    name: str
    workers: Workers = field(init=False)
    sweep: Sweep = field(init=False)

    def __post_init__(self) -> None:
        self.workers = Workers(self.spine.replica, PageTokens(b"k" * 32), self.name)
        self.sweep = Sweep(self.spine.replica, self.workers, _nobody_cares)

    async def come(self, session: str, declared: dict[str, Any]) -> Connection:
        """A worker connects that defines "order" like this."""
        connection, _ = await self.workers.connect(hello(session, declared))
        return connection

    async def leave(self, connection: Connection, *, goodbye: bool = True) -> None:
        """A worker's stream ends."""
        await self.workers.disconnect(connection, goodbye=goodbye)

    async def put(self, settings: dict[str, Any]) -> None:
        """Somebody puts a definition of "order"."""
        await self.spine.db.run_tx(lambda tx: put(tx, ORDER, self.defined(settings)))

    def defined(self, settings: dict[str, Any]) -> Definition:
        """The definition with these settings."""
        return self.spine.replica.kinds.define([Registration(ORDER, settings)])[ORDER]

    async def color(self) -> str:
        """The color of "order" by its row."""
        found = await self.spine.db.run_tx(lambda tx: handlers.registered(tx, ORDER))
        assert found is not None and found.definition is not None
        return str(found.definition.settings["color"])

    async def pass_time(self, seconds: float, *of: str) -> None:
        """Nobody has seen these sessions, or any, for so much longer."""
        named = [session_table.c.session_id.in_(of)] if of else []
        earlier = session_table.c.seen_at - round(seconds * 1_000_000)
        await self.spine.db.run_tx(lambda tx: tx.execute(update(session_table).where(*named).values(seen_at=earlier)))


def hello(session: str, declared: dict[str, Any]) -> Hello:
    return Hello(session, session, "test", 1, "default", (Registration(ORDER, declared),))


async def _nobody_cares(reachable: bool) -> None:
    pass


def changes(*sites: Site) -> int:
    """How often "order" got another definition."""
    return sum(ORDER in one.redefined for site in {id(site): site for site in sites}.values() for one in said(site))


def said(site: Site) -> list[Committed]:
    """What a replica announced."""
    return site.spine.committed


async def sweep(*sites: Site) -> None:
    """Every replica sweeps, twice."""
    for site in sites * 2:
        assert await site.sweep.once() is not None


@asynccontextmanager
async def sites_on(database_url: str, number: int, tuning: Tuning) -> AsyncIterator[list[Site]]:
    """Replicas on one database."""
    async with AsyncExitStack() as stack:
        found = []
        for name in range(number):
            db = open_database(make_url(database_url))
            stack.push_async_callback(db.close)
            await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
            spine = await stack.enter_async_context(running(Spine(db, tuning=tuning)))
            found.append(Site(spine, f"replica{name}"))
        yield found


@pytest.fixture
async def sites(database_url: str, tuning: Tuning) -> AsyncIterator[tuple[Site, Site]]:
    """Two replicas on PostgreSQL; on SQLite, which has one server, one that is both."""
    number = 2 if database_url.startswith("postgresql") else 1
    async with sites_on(database_url, number, replace(tuning, gone_after=0.0)) as found:
        yield found[0], found[-1]


@pytest.fixture
async def pair(shared_url: str, tuning: Tuning) -> AsyncIterator[tuple[Site, Site]]:
    """Two replicas on one PostgreSQL."""
    async with sites_on(shared_url, 2, replace(tuning, gone_after=0.0)) as (here, there):
        yield here, there


# ---- deploys


async def test_a_rolling_deploy_changes_a_definition_once(sites: tuple[Site, Site]) -> None:
    here, there = sites
    old = [await here.come("old1", RED), await there.come("old2", RED)]
    assert (await here.color(), changes(here, there)) == ("red", 1)

    new = await there.come("new1", BLUE)
    assert await here.color() == "blue"
    await sweep(here, there)
    await here.leave(old[0])
    again = await there.come("old1", RED)
    await there.leave(old[1], goodbye=False)
    await sweep(here, there)
    await there.leave(again)
    await here.come("new2", BLUE)
    await there.pass_time(61, "old1", "old2")
    await sweep(here, there)

    assert await here.color() == "blue"
    assert changes(here, there) == 2
    assert new.owner.session_id == "new1"


@pytest.mark.parametrize("goodbye", [True, False])
async def test_a_rollback_changes_it_back_a_minute_after_the_last_new_worker_has_gone(
    sites: tuple[Site, Site], goodbye: bool
) -> None:
    here, there = sites
    await here.come("old", RED)
    new = await there.come("new", BLUE)

    await there.leave(new, goodbye=goodbye)
    await there.pass_time(55, "new")
    await sweep(here, there)
    assert await here.color() == "blue"

    await there.pass_time(6, "new")
    await sweep(here, there)
    assert await here.color() == "red"


async def test_the_only_new_worker_may_come_back_within_a_minute(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.come("old", RED)
    for _ in range(3):
        new = await there.come("new", BLUE)
        await there.leave(new)
        await here.pass_time(30, "new")
        await sweep(here, there)

    assert await here.color() == "blue"


async def test_a_definition_stays_when_all_its_workers_have_gone(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.leave(await here.come("old", RED))
    await there.leave(await there.come("new", BLUE))
    await here.pass_time(600)

    await sweep(here, there)

    assert await here.color() == "blue"


async def test_a_rollback_to_what_was_put_waits_for_no_worker(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.come("old", RED)
    await here.put(GREEN)
    await sweep(here, there)
    assert await here.color() == "green"

    new = await there.come("new", BLUE)
    await here.come("old2", RED)
    await sweep(here, there)
    assert await here.color() == "blue"

    await there.leave(new)
    await there.pass_time(61, "new")
    await sweep(here, there)
    assert await here.color() == "green"

    await here.put(RED)
    await sweep(here, there)
    assert await here.color() == "red"


async def test_a_worker_without_a_stream_declares_and_counts_for_a_minute_after_its_last_call(
    sites: tuple[Site, Site],
) -> None:
    here, there = sites
    await WorkerCalls(here.spine.replica).register(hello("caller", RED))
    assert changes(here) == 1
    await WorkerCalls(there.spine.replica).register(hello("newer", BLUE))
    await here.pass_time(59, "newer")
    await sweep(here, there)
    assert await here.color() == "blue"

    await here.pass_time(2, "newer")
    await sweep(here, there)
    assert await here.color() == "red"


# ---- nothing new


async def test_repeating_a_known_definition_writes_nothing(sites: tuple[Site, Site]) -> None:
    here, there = sites
    for settings in (RED, BLUE):
        await here.come("worker", settings)

    def asked(tx: Tx) -> list[str]:
        return [text for text, _ in statements(tx, lambda tx: declare(tx, {ORDER: there.defined(RED)}))]

    said = await there.spine.db.run_tx(asked)

    assert len(said) == 2 and all(text.startswith("SELECT") for text in said)
    assert await here.color() == "blue"


async def test_a_sweep_that_finds_nothing_to_mend_locks_and_writes_nothing(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.come("old", RED)
    await there.come("new", BLUE)
    await sweep(here)

    for site in sites:
        seen = await site.spine.db.run_tx(
            lambda tx, site=site: statements(tx, lambda tx: site.sweep._sweep(tx, site.workers.owners()))
        )
        texts = [text for text, _ in seen]
        assert any("FROM" in text and "declarations" in text for text in texts)  # it has looked
        assert not any("FOR NO KEY UPDATE" in text or "UPDATE handlers" in text for text in texts)


async def test_a_clock_that_was_set_back_keeps_no_new_definition_out(sites: tuple[Site, Site]) -> None:
    """All that was stored before is of the future."""
    here, there = sites
    await here.come("old", RED)
    await here.pass_time(-3600)
    later = {"created_at": 2**60, "registered_at": 2**60, "used_at": 2**60}
    await here.spine.db.run_tx(lambda tx: tx.execute(update(handler_table).values(later)))

    await there.come("new", BLUE)
    await sweep(here, there)

    assert await here.color() == "blue"


# ---- outages


async def test_a_replica_that_has_just_started_takes_no_worker_for_gone(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.come("old", RED)
    await there.come("new", BLUE)
    await here.pass_time(600, "new")

    started = Site(Spine(here.spine.db), "started")
    await started.come("old", RED)
    await sweep(started)
    assert await here.color() == "blue"

    started.sweep._in_touch_since -= 61_000_000
    await sweep(started)
    assert await here.color() == "red"


@pytest.mark.parametrize("gap", [1, -1])
async def test_after_an_outage_of_the_database_all_workers_have_a_minute_to_come_back(
    sites: tuple[Site, Site], gap: int
) -> None:
    """Or when its clock was set: then nobody knows how long any of them was away."""
    there, here = sites[1], Site(Spine(sites[0].spine.db), "here")
    await here.come("old", RED)
    await there.come("new", BLUE)
    await sweep(here)
    here.sweep._in_touch_since -= 61_000_000

    await here.pass_time(600)
    here.sweep._swept_at -= gap * 600_000_000
    await sweep(here)

    assert await here.color() == "blue"


# ---- at the same moment


async def test_of_two_new_definitions_at_once_the_later_one_holds(
    pair: tuple[Site, Site], postgres: PostgresServer, shared_url: str
) -> None:
    here, there = pair
    await here.come("old", RED)

    async with held_before_commit(here.spine, here.come("new", BLUE), label="call"):
        newest = asyncio.create_task(there.come("newest", GREEN))
        await postgres.wait_for_waiters(shared_url, 1)
    await newest
    await sweep(here, there)

    assert await here.color() == "green"


async def test_a_sweep_leaves_a_definition_alone_that_is_just_being_changed(pair: tuple[Site, Site]) -> None:
    here, there = pair
    await here.come("old", RED)
    await there.leave(await there.come("new", BLUE))
    await there.pass_time(61, "new")

    async with held_before_commit(here.spine, here.come("newest", GREEN), label="call"):
        await sweep(there)
        assert await there.color() == "blue"
    await sweep(there)

    assert await here.color() == "green"


async def test_the_next_sweep_mends_what_one_decided_that_did_not_see_a_worker_come(pair: tuple[Site, Site]) -> None:
    here, there = pair
    await here.come("old", RED)
    await there.leave(await there.come("new", BLUE))
    await there.pass_time(61, "new")

    async with held_before_commit(here.spine, here.come("new", BLUE), label="call"):
        await sweep(there)
        assert await there.color() == "red"
    await sweep(there)

    assert await here.color() == "blue"


async def test_a_sweep_decides_by_what_it_finds_once_it_has_locked(pair: tuple[Site, Site]) -> None:
    here, there = pair
    await here.come("old", RED)
    await there.leave(await there.come("new", BLUE))
    await there.pass_time(61, "new")
    came = list[Connection]()

    async def come_back() -> None:
        came.append(await here.come("new", BLUE))

    with before_statement(there.spine, "FOR NO KEY UPDATE", come_back):
        await there.sweep.once()

    assert came and await there.color() == "blue"


# ---- what a replica remembers


async def test_a_replica_believes_a_definition_until_it_hears_of_another(pair: tuple[Site, Site]) -> None:
    here, there = pair
    await here.come("old", RED)
    known = here.spine.replica.registry
    assert (await known.require(ORDER)).settings == {"color": "red", "seats": 1}

    await there.come("new", BLUE)
    assert (await known.require(ORDER)).settings["color"] == "red"
    here.spine.replica.heard(Hint(frozenset([ORDER])))

    assert (await known.require(ORDER)).settings["color"] == "blue"
    await here.come("newest", GREEN)
    assert (await known.require(ORDER)).settings["color"] == "green"


async def test_a_definition_that_changes_while_it_is_read_is_not_believed(
    sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of the change finds nothing to drop yet, and the reading has seen the definition before it."""
    here, _ = sites
    await here.come("worker", RED)
    registry, read, readings = here.spine.replica.registry, handlers.registered, []

    def reading(tx: Tx, handler: Handler) -> Any:
        found = read(tx, handler)
        readings.append(handler)
        if len(readings) == 1:
            registry.redefined([handler])
        return found

    monkeypatch.setattr(handlers, "registered", reading)
    registry.redefined(None)

    for _ in range(3):
        assert (await registry.require(ORDER)).settings["color"] == "red"

    assert len(readings) == 2


async def test_a_handler_that_only_older_servers_registered_has_the_defaults(spine: Spine) -> None:
    older = Handler("default", TaskKind.WORKFLOW, "older")
    await spine.db.run_tx(lambda tx: handlers.register(tx, [older]))

    assert (await spine.replica.registry.require(older)).settings == {"color": "white", "seats": 1}


# ---- older servers, forgotten names


async def test_what_an_older_server_wrote_of_a_session_is_read(sites: tuple[Site, Site]) -> None:
    """It wrote no hashes, and it does not know that a newer one wrote down when the session left."""
    here, _ = sites
    await here.leave(await here.come("worker", RED))
    seen = await here.spine.db.run_tx(sessions.seen)
    assert (seen.served, seen.hosted) == (set(), {ORDER: {here.defined(RED).hash}})

    row = {"hashes": None, "seen_at": session_table.c.left_at + 1}
    await here.spine.db.run_tx(lambda tx: tx.execute(update(session_table).values(row)))

    seen = await here.spine.db.run_tx(sessions.seen)
    assert (seen.served, seen.hosted) == ({ORDER}, {})


async def test_a_worker_that_declares_ever_something_else_leaves_a_bounded_number(sites: tuple[Site, Site]) -> None:
    """With the name of its pod in the description, say. The last put is kept: it is in force when they have gone."""
    here, _ = sites
    await here.come("old", RED)
    await here.put(GREEN)
    for number in range(MOST_DECLARED + 5):
        await here.spine.db.run_tx(lambda tx, n=number: declare(tx, {ORDER: here.defined({"color": f"color {n}"})}))

    count = select(func.count()).select_from(declared_table)
    assert await here.spine.db.run_tx(lambda tx: tx.execute(count).scalar()) == MOST_DECLARED + 1
    assert await here.color() == f"color {MOST_DECLARED + 4}"
    await sweep(here)
    assert await here.color() == "green"


async def test_an_older_server_reads_what_this_one_writes_of_a_session(sites: tuple[Site, Site]) -> None:
    """It reads pairs of a kind and a name from the column, in the sweep that renews leases."""
    here, _ = sites
    await here.come("worker", RED)
    row = await here.spine.db.run_tx(lambda tx: tx.execute(select(session_table.c.handlers)).scalar_one())
    assert json.loads(row) == [["workflow", "order"]]


async def test_declarations_are_forgotten_with_their_name_and_made_anew(sites: tuple[Site, Site]) -> None:
    here, there = sites
    await here.leave(await here.come("worker", RED))

    def grow_old(tx: Tx) -> None:
        tx.execute(delete(session_table))
        tx.execute(update(handler_table).values(used_at=0))

    await here.spine.db.run_tx(grow_old)
    await forget_names(here.spine.db, here.spine.replica.kinds, HOUR)
    assert await here.spine.db.run_tx(lambda tx: tx.execute(select(declared_table)).all()) == []

    await there.come("worker", RED)
    assert await here.color() == "red"
