"""PostgreSQL killed again and again under load: nothing acknowledged is lost, nothing is done twice, nobody dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import make_url, text

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.tasks import NewTask, Task, Verdict
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import DatabaseUnavailable, ServerBusy
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.spine import requests
from tests.support.databases.postgres import OwnPostgres, own_postgres
from tests.support.patience import PATIENCE
from tests.support.replicas import tickets
from tests.support.replicas.spine import ANNA, ORDER, Spine, running, sweep_of
from tests.support.servers.servers import start_process

CRASHES = 10
WRITERS = 8


@dataclass
class Load:
    """Eight writers that repeat each call until it is acknowledged, a holder that renews, and a sweep beside them."""

    spine: Spine
    acknowledged: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    taken_over: list[int] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_tasks(self, writer: int) -> None:
        for number in range(1_000_000):
            if self.stop.is_set():
                return
            key = f"w{writer}-{number}"
            await self._surely(lambda key=key: self.spine.submit(tickets.Schedule(NewTask(ORDER, key))))  # type: ignore[misc]
            self.acknowledged.append(key)

    async def write_requests(self, writer: int) -> None:
        for number in range(1_000_000):
            if self.stop.is_set():
                return
            request_id = f"r{writer}-{number}"
            await self._surely(lambda one=request_id: self.spine.db.run_tx(lambda tx: effect(tx, one)))  # type: ignore[misc]
            self.requests.append(request_id)

    async def hold(self, tasks: list[Task]) -> None:
        while not self.stop.is_set():
            for task in tasks:
                answer = await self._surely(lambda one=task: self.spine.renew(one))  # type: ignore[misc]
                if answer.verdict is Verdict.STALE:
                    self.taken_over.append(task.id)
            await asyncio.sleep(0.05)

    async def sweep(self) -> None:
        sweep = sweep_of(self.spine.replica)
        while not self.stop.is_set():
            await sweep.once()
            await asyncio.sleep(0.05)

    async def _surely(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except (DatabaseUnavailable, ServerBusy) as error:
                self.failed[error.reason] += 1
                await asyncio.sleep(0.01)


def effect(tx: Tx, request_id: str) -> str:
    """Something that must happen once per request id: a row in a table that would hold it twice."""
    asked = Asked("me", "/Effect", request_id)

    def work() -> str:
        tx.execute(text("INSERT INTO effects VALUES (:id)"), {"id": request_id})
        return request_id

    return requests.once(tx, "", asked, work, dump=str, load=str)


@pytest.mark.slow
async def test_ten_crashes_under_eight_writers() -> None:
    with own_postgres() as postgres:
        db = open_database(make_url(postgres.url))
        await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
        await db.run_tx(lambda tx: tx.execute(text("CREATE TABLE effects (id TEXT NOT NULL)")))
        async with start_process(postgres.url) as server, running(Spine(db)) as spine:
            load = Load(spine)
            for number in range(20):
                await spine.schedule(f"held{number}", priority=0)
            tasks = await spine.claim(ANNA, credits=20)
            async with asyncio.TaskGroup() as work:
                for writer in range(WRITERS // 2):
                    work.create_task(load.write_tasks(writer))
                    work.create_task(load.write_requests(writer))
                work.create_task(load.hold(tasks))
                work.create_task(load.sweep())
                for _ in range(CRASHES):
                    await progress(load)
                    await asyncio.to_thread(crash, postgres)
                await progress(load)
                load.stop.set()
            await check(load, spine, db)
            assert server.process.returncode is None
            assert await server.stop() == 0
        await db.close()


def crash(postgres: OwnPostgres) -> None:
    postgres.stop()
    postgres.start()


async def progress(load: Load) -> None:
    """Wait until both kinds of writers have gone on."""
    tasks, calls_ = len(load.acknowledged) + 150, len(load.requests) + 150
    async with asyncio.timeout(PATIENCE):
        while len(load.acknowledged) < tasks or len(load.requests) < calls_:
            await asyncio.sleep(0.01)


async def check(load: Load, spine: Spine, db: Database) -> None:
    stored = {row.key for row in await spine.rows()}
    effects = Counter(await db.run_tx(lambda tx: list(tx.execute(text("SELECT id FROM effects")).scalars())))

    assert set(load.acknowledged) <= stored  # none lost
    assert set(load.requests) <= effects.keys()
    assert max(effects.values()) == 1  # none twice
    assert load.taken_over == []  # leases did not lapse while nobody could renew them
    assert load.failed["DATABASE_UNAVAILABLE"] >= CRASHES  # the crashes were felt
    whole = [db.run_tx(lambda tx: tx.execute(text("SELECT pg_sleep(0.05)")).all()) for _ in range(WRITERS)]
    assert len(await asyncio.gather(*whole)) == WRITERS  # every connection of the pool is good
