"""The only way to a transaction: retries, cancellation, outcomes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, insert, make_url, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from stepwell_server.databases import open_database
from stepwell_server.domain.namespaces import NamespaceSpec
from stepwell_server.domain.values.errors import Conflict, DatabaseUnavailable, NamespaceNotFound, ServerBusy
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.storage import namespaces
from stepwell_server.storage.database import migrate, postgresql
from stepwell_server.storage.database.database import (
    CALL,
    MOST_ATTEMPTS,
    READ,
    CommitUnknown,
    Database,
    Fault,
    Tx,
    TxOptions,
)
from stepwell_server.storage.database.hints import PostgresqlHints
from stepwell_server.storage.schema import clock


async def count(db: Database) -> int:
    return await db.run_tx(lambda tx: tx.execute(select(func.count()).select_from(text("namespaces"))).scalar_one())


def create(name: str) -> Callable[[Tx], Any]:
    return lambda tx: namespaces.insert(tx, NamespaceSpec(name))


class Failing:
    """A backend that fails a few times before, or after, it does what it is asked."""

    def __init__(self, inner: Any, fault: Fault, times: int, *, error: type[Exception] = RuntimeError) -> None:
        self._inner, self._fault, self._times, self._error = inner, fault, times, error
        self.attempts = 0

    async def attempt(self, work: Any, options: Any) -> Any:
        self.attempts += 1
        if self.attempts <= self._times:
            raise self._error("injected")
        return await self._inner.attempt(work, options)

    async def attempt_unhurried(self, work: Any) -> Any:
        return await self.attempt(work, CALL)

    def classify(self, error: BaseException) -> Fault:
        return self._fault


def failing(db: Database, fault: Fault, times: int, **options: Any) -> tuple[Database, Failing]:
    backend = Failing(db.backend, fault, times, **options)
    return Database(backend), backend  # type: ignore[arg-type]


async def test_a_conflict_is_run_again_until_it_wins(db: Database) -> None:
    broken, backend = failing(db, Fault.CONFLICT, MOST_ATTEMPTS - 1)

    await broken.run_tx(create("won"))

    assert backend.attempts == MOST_ATTEMPTS
    assert await count(db) == 2


async def test_a_conflict_that_never_ends_is_told_as_one(db: Database) -> None:
    broken, backend = failing(db, Fault.CONFLICT, 99)

    with pytest.raises(Conflict):
        await broken.run_tx(create("lost"))

    assert backend.attempts == MOST_ATTEMPTS
    assert await count(db) == 1


async def test_an_outage_is_unavailable_and_seen(db: Database) -> None:
    broken, _ = failing(db, Fault.DISCONNECTED, MOST_ATTEMPTS)

    with pytest.raises(DatabaseUnavailable):
        await broken.run_tx(create("away"))
    assert not broken.reachable

    await broken.run_tx(create("back"))
    assert broken.reachable


async def test_a_commit_whose_outcome_is_unknown_is_never_run_again_unless_it_only_read(db: Database) -> None:
    writing, tries = failing(db, Fault.DISCONNECTED, 1, error=CommitUnknown)
    with pytest.raises(DatabaseUnavailable):
        await writing.run_tx(create("twice"))
    assert tries.attempts == 1

    reading, tries = failing(db, Fault.DISCONNECTED, 1, error=CommitUnknown)
    await reading.run_tx(lambda tx: tx.execute(select(clock)).all(), READ)
    assert tries.attempts == 2


@pytest.mark.parametrize("error", [CommitUnknown, RuntimeError])
async def test_a_migration_whose_connection_was_cut_off_is_run_again(db: Database, error: type[Exception]) -> None:
    """Else a server that starts while the network stumbles gives up."""
    broken, backend = failing(db, Fault.DISCONNECTED, MOST_ATTEMPTS - 1, error=error)

    await broken.run_unhurried(migrate.check)

    assert (backend.attempts, broken.reachable) == (MOST_ATTEMPTS, True)


async def test_a_bug_is_not_retried_and_changes_nothing(db: Database) -> None:
    def half(tx: Tx) -> None:
        create("half")(tx)
        tx.execute(insert(clock).values(id=1))

    with pytest.raises(IntegrityError):
        await db.run_tx(half)

    assert await count(db) == 1


async def test_a_refusal_of_a_call_is_no_fault_of_the_database(db: Database) -> None:
    def refuse(tx: Tx) -> None:
        raise NamespaceNotFound("there is none")

    with pytest.raises(NamespaceNotFound):
        await db.run_tx(refuse)

    assert not db.faults


async def test_a_cancelled_caller_does_not_cut_its_transaction(db: Database) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(tx: Tx) -> None:
        loop.call_soon_threadsafe(began.set)
        for number in range(50):
            create(f"n{number}")(tx)

    caller = asyncio.create_task(db.run_tx(slowly))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait(db._running)

    assert await count(db) == 51


async def test_read_committed_is_used_whatever_the_default(postgres: Any, postgres_url: str) -> None:

    name = make_url(postgres_url).database
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    db = open_database(make_url(postgres_url))

    level = await db.run_tx(lambda tx: tx.execute(text("SHOW transaction_isolation")).scalar_one())
    await db.close()

    assert level == "read committed"


async def test_no_connection_has_its_statements_compiled(postgres: Any, postgres_url: str) -> None:
    postgres.execute(f"ALTER DATABASE {make_url(postgres_url).database} SET jit = on")
    db, hints = open_database(make_url(postgres_url)), PostgresqlHints(make_url(postgres_url))
    heard = asyncio.Event()
    listening = asyncio.create_task(hints.listen(lambda hint: heard.set()))

    def is_compiled(tx: Tx) -> str:
        return tx.execute(text("SHOW jit")).scalar_one()

    said = [await db.run_tx(is_compiled), await db.run_tx(is_compiled, TxOptions(reserved=True))]
    said.append(await db.run_unhurried(is_compiled))
    await heard.wait()
    assert hints._connection is not None
    said.append(await hints._connection.fetchval("SHOW jit"))
    listening.cancel()
    await asyncio.wait([listening])
    await db.close()

    assert said == ["off"] * 4


async def test_real_conflicts_are_recognised(postgres_url: str) -> None:

    db = open_database(make_url(postgres_url))

    def raising(state: str) -> Callable[[Tx], Any]:
        return lambda tx: tx.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")

    for state in ("40001", "40P01", "55P03"):
        with pytest.raises(Conflict):
            await db.run_tx(raising(state))
    for state in ("57P01", "57P03", "08006", "53300", "25006"):
        with pytest.raises(DatabaseUnavailable):
            await db.run_tx(raising(state))
    await db.close()


async def test_sqlite_readers_do_not_wait_for_the_writer(sqlite_url: str) -> None:

    db = open_database(make_url(sqlite_url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    began, read = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(tx: Tx) -> bool:
        create("slow")(tx)
        loop.call_soon_threadsafe(began.set)
        return asyncio.run_coroutine_threadsafe(read.wait(), loop).result(timeout=10)

    writing = asyncio.create_task(db.run_tx(write))
    await began.wait()
    names = await db.run_tx(lambda tx: [one.spec.name for one in namespaces.list_page(tx, 9, None)], READ)
    read.set()

    assert await writing
    assert names == ["default"]
    await db.close()


async def test_a_transaction_that_reads_cannot_write(db: Database) -> None:
    with pytest.raises((DatabaseUnavailable, OperationalError)):
        await db.run_tx(create("sneaky"), READ)

    await db.run_tx(create("open"))
    assert await count(db) == 2


async def test_what_took_too_long_is_unavailable_though_the_database_is_there(postgres_url: str) -> None:
    db = open_database(make_url(postgres_url))

    def slow(tx: Tx) -> None:
        tx.exec_driver_sql("SET LOCAL statement_timeout = '20ms'")
        tx.exec_driver_sql("SELECT pg_sleep(5)")

    with pytest.raises(DatabaseUnavailable):
        await db.run_tx(slow)

    assert db.reachable
    await db.close()


async def test_when_all_connections_are_in_use_the_server_is_busy_and_not_dead(postgres_url: str) -> None:
    db = open_database(make_url(postgres_url), Tuning(pool_timeout=0.1))
    sleeping = [
        asyncio.create_task(db.run_tx(lambda tx: tx.exec_driver_sql("SELECT pg_sleep(1)").all()))
        for _ in range(postgresql.POOL_SIZE)
    ]
    await asyncio.sleep(0)

    with pytest.raises(ServerBusy):
        await db.run_tx(lambda tx: tx.exec_driver_sql("SELECT 1").all())
    reserved = await db.run_tx(lambda tx: tx.execute(text("SELECT 1")).scalar_one(), TxOptions(reserved=True))

    assert (db.reachable, reserved) == (True, 1)
    await asyncio.gather(*sleeping)
    await db.close()


@pytest.mark.tuning(transactions=3)
async def test_transactions_that_wait_are_bounded(db: Database) -> None:

    results = await asyncio.gather(*(db.run_tx(create(f"n{n}")) for n in range(10)), return_exceptions=True)

    assert len([one for one in results if isinstance(one, ServerBusy)]) == 7


async def test_an_acknowledged_commit_of_sqlite_is_on_disk_and_a_writer_holds_the_lock_from_its_begin(
    sqlite_url: str,
) -> None:
    db = open_database(make_url(sqlite_url))

    def settings(tx: Tx) -> tuple[int, str, str]:
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
        synchronous, journal = (
            tx.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("synchronous", "journal_mode")
        )
        return synchronous, journal, "locked"

    assert await db.run_tx(settings) == (2, "wal", "locked")
    await db.close()
