"""Leases over all tasks: the lease clock, and the sweep that takes lapsed ones back."""

from __future__ import annotations

from sqlalchemy import and_, select, update

from stepwell_server.domain.spine.leases import LeaseTimes
from stepwell_server.domain.spine.tasks import Task, TaskStatus
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import lease_clock, tasks
from stepwell_server.storage.spine.handlers import in_status
from stepwell_server.storage.spine.tasks import from_row, is_held, save, stamp

_LAST_TICK = select(lease_clock.c.last_tick).where(lease_clock.c.id == 1)


def any_held(tx: Tx) -> bool:
    """Whether anybody holds anything."""
    held = select(tasks.c.id).where(tasks.c.status == in_status(TaskStatus.PROCESSING)).limit(1)
    return tx.execute(held).first() is not None


def tick(tx: Tx, times: LeaseTimes, rested_at: Micros = 0) -> bool:
    """Note that leases can be renewed now. After a gap in which nobody could, give every lease its length again.

    True: there was such a gap, or the clock was set back, so that leases would last longer by that, and a gap would not
    show. When nothing was held at `rested_at`, all leases are from later, and so were ticks not missing.
    """
    ticked = tx.execute(_LAST_TICK.with_for_update()).scalar_one()
    now = tx.execute(select(lease_now())).scalar_one()
    last = max(ticked, rested_at) if rested_at <= now else ticked  # else that was before the clock was set back
    gap = not 0 <= now - last <= times.trusted_gap
    if gap:
        alive = and_(tasks.c.status == in_status(TaskStatus.PROCESSING), tasks.c.locked_until > last)
        tx.execute(update(tasks).where(alive).values(locked_until=now + times.lease))
    tx.execute(update(lease_clock).where(lease_clock.c.id == 1).values(last_tick=now))
    return gap


def sweep(tx: Tx, times: LeaseTimes, limit: int = 1000) -> list[Task]:
    """Take lapsed leases back, while the lease clock is trusted. Returns the tasks as they are now."""
    last = tx.execute(_LAST_TICK).scalar_one()
    lapsed = (
        select(tasks)
        .where(
            *is_held(),
            tasks.c.locked_until <= lease_now(),
            lease_now() - last < times.trusted_gap,
        )
        .order_by(tasks.c.locked_until, tasks.c.id)  # not by id alone: SQLite would walk the whole table for that
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    found = [from_row(row) for row in tx.execute(lapsed)]
    if not found:
        return []
    at = stamp(tx)
    returned = [task.lapsed(at.now) for task in found]
    save(tx, returned)
    return returned
