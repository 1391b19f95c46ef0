"""The two clocks, on both databases."""

from __future__ import annotations

import time

from sqlalchemy import make_url, select

from stepwell_server.databases import open_database
from stepwell_server.domain.clock import ClockReading
from stepwell_server.storage.database import clock, migrate
from stepwell_server.storage.database.clock import db_now, lease_now
from stepwell_server.storage.database.database import Database, Tx

HOUR = 3_600_000_000


async def test_a_real_clock_tells_the_time_in_microseconds(db: Database) -> None:
    reading = await db.run_tx(clock.read)

    assert abs(reading.now - time.time_ns() // 1000) < HOUR
    assert abs(reading.now - reading.lease_now) < 60_000_000
    assert not reading.virtual


async def test_the_clock_goes_on_inside_a_transaction(db: Database) -> None:
    def readings(tx: Tx) -> list[int]:
        return [tx.execute(select(db_now())).scalar_one() for _ in range(100)]

    first, *_, last = await db.run_tx(readings)

    assert last > first


async def test_a_virtual_clock_stands_until_it_is_moved_while_leases_go_on(database_url: str) -> None:
    db = open_database(make_url(database_url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=True))
    before = await db.run_tx(clock.read)

    await db.run_tx(lambda tx: clock.move(tx, before.now + HOUR))
    after = await db.run_tx(clock.read)
    await db.close()

    assert before.virtual
    assert after.now == before.now + HOUR
    assert before.lease_now < after.lease_now < before.lease_now + HOUR


async def test_lease_now_is_usable_in_arithmetic(db: Database) -> None:
    def later(tx: Tx) -> ClockReading:
        moment = tx.execute(select(lease_now() + 30_000_000)).scalar_one()
        reading = clock.read(tx)
        return ClockReading(now=moment, lease_now=reading.lease_now, virtual=False)

    reading = await db.run_tx(later)

    assert 29_000_000 < reading.now - reading.lease_now <= 30_000_000
