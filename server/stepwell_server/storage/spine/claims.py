"""Due tasks, locked for those that can take them: which of them, how many of each handler, and in which order.

What has begun comes first, then one task of each handler in turn: a backlog keeps nothing else waiting. Priority and
age decide within a handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal,
    select,
    true,
)

from stepwell_server.domain.spine.handlers import RESUMING, Handler
from stepwell_server.domain.spine.tasks import BEGUN_PRIORITY, Task, TaskStatus
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import tasks
from stepwell_server.storage.spine import handlers, limits, sessions
from stepwell_server.storage.spine.tasks import from_row

PRIORITIES = range(10)
STICKY: Micros = 20_000
"""How much longer than its time a run stays with the worker that has it in memory, before others may take it."""
LEAST_SOUGHT = 4


@dataclass(frozen=True, slots=True)
class Served:
    """A handler that somebody can serve now, and how many of its tasks."""

    handler: Handler
    credits: int
    is_limited: bool = False
    """Nobody else claims of it meanwhile."""

    def sought(self, share: int) -> int:
        """How many to look at: more than are wanted, as others may be claiming the oldest, and about a fair share."""
        return self.credits if self.is_limited else min(2 * self.credits, max(LEAST_SOUGHT, share))


def lock_due(
    tx: Tx, served: Sequence[Served], most: int, session_ids: Iterable[str] = (), patience: Micros = 0
) -> list[Task]:
    """Lock so many due tasks, in the order of claims, of no handler more than its credit.

    A handler that is paused gives nothing; one with a limit gives what is free, counted under its lock. What another
    session than these keeps in memory is left to it for as long as the patience lasts, if that session is there.
    """
    allowed = _allowed(tx, served)
    if not allowed:
        return []
    chosen: list[Task] = []
    left = {one.handler: one.credits for one in allowed}
    for task in _in_order(_lock_due(tx, allowed, most, session_ids, patience)):
        if left[task.handler] > 0:
            left[task.handler] -= 1
            chosen.append(task)
    return chosen[:most]


def _allowed(tx: Tx, served: Sequence[Served]) -> list[Served]:
    """What may be claimed of each handler now. All of them stay as they are until the transaction ends."""
    asked = {one.handler: one.credits for one in served if one.credits > 0}
    locked = limits.lock(tx, asked)
    running = limits.count_held(tx, [handler for handler, limit in locked.items() if limit is not None])
    allowed = []
    for handler, limit in locked.items():
        free = asked[handler] if limit is None else min(asked[handler], limit - running.get(handler, 0))
        if free > 0:
            allowed.append(Served(handler, free, is_limited=limit is not None))
    return allowed


def _in_order(found: Iterable[Task]) -> list[Task]:
    """What has begun by urgency and age, then the first of each handler, the second of each, and so on."""
    places: dict[Handler, int] = {}
    ordered = []
    for task in sorted(found, key=lambda task: (task.priority, task.run_at, task.id)):
        places[task.handler] = place = places.get(task.handler, 0) + 1
        ordered.append((not _has_begun(task), place, task.run_at, task.id, task))
    return [task for *_, task in sorted(ordered)]


def _has_begun(task: Task) -> bool:
    return task.handler.kind in RESUMING and task.priority <= BEGUN_PRIORITY


def _lock_due(tx: Tx, allowed: Sequence[Served], most: int, session_ids: Iterable[str], patience: Micros) -> list[Task]:
    """Lock due tasks, looked up per (handler, priority): neither a million sleepers nor names nobody serves are met."""
    sought = [one.sought(2 * most // len(allowed)) for one in allowed]
    classes = dialect.as_rows(
        handlers.as_row(one.handler) | {"number": number, "priority": priority, "sought": sought[number]}
        for number, one in enumerate(allowed)
        for priority in PRIORITIES
    )
    mine = dialect.as_rows({"session_id": one} for one in session_ids)
    given = {"classes": classes, "longest": max(sought), "most": most, "mine": mine, "patience": patience}
    return [from_row(row) for row in tx.execute(_due_sql(dialect.product(tx)), given)]


@cache
def _due_sql(product: str) -> Select[Any]:
    """Lock no more than is wanted: what a claim locks and leaves others pass over, and take what is newer."""
    columns = {"number": Integer(), "priority": Integer(), "sought": Integer()}
    classes = dialect.rows(product, "classes", **handlers.COLUMNS, **columns)
    found = _due_of(product, classes)
    if product != "postgresql":  # nobody else writes meanwhile: what is left over is nobody's loss
        ids = found.with_only_columns(found.selected_columns.id).correlate(classes)
        return select(tasks).select_from(classes.join(tasks, tasks.c.id.in_(ids)))
    turns = _turns(classes, found.lateral("due_of_class"))
    is_pending = dialect.unindexed(tasks.c.status) == TaskStatus.PENDING
    still_due = [tasks.c.id == turns.c.id, is_pending, tasks.c.run_at <= db_now()]
    free = {"key_share": True, "skip_locked": True}
    joined, locked = dialect.look_up(product, turns, tasks, *still_due, lock=free)
    return select(locked).select_from(joined).limit(bindparam("most", type_=Integer()))


def _turns(classes: FromClause, due: FromClause) -> FromClause:
    """Numbers of due tasks in the order in which they are locked, which is that of `_in_order`."""
    place = func.row_number().over(partition_by=classes.c.number, order_by=(due.c.priority, due.c.run_at, due.c.id))
    resumes = classes.c.kind.in_([literal(kind.value) for kind in sorted(RESUMING)])
    has_begun = and_(resumes, due.c.priority <= literal(BEGUN_PRIORITY))
    placed = select(
        due.c.id, due.c.run_at, classes.c.sought, place.label("place"), has_begun.label("has_begun")
    ).select_from(classes.join(due, true()))
    one = placed.subquery("placed")
    turns = select(one.c.id).where(one.c.place <= one.c.sought)
    return turns.order_by(one.c.has_begun.desc(), one.c.place, one.c.run_at, one.c.id).subquery("turns")


def _due_of(product: str, classes: FromClause) -> Select[Any]:
    """The oldest due tasks of a (handler, priority)."""
    mine = dialect.rows(product, "mine", session_id=Text())
    inner = tasks.alias("due")
    sticky = inner.c.sticky_session
    free = sticky.is_(None) | (inner.c.run_at <= db_now() - bindparam("patience", type_=BigInteger()))
    return (
        select(inner.c.id, inner.c.priority, inner.c.run_at)
        .where(
            handlers.same_handler(inner.c, classes.c),
            inner.c.priority == classes.c.priority,
            inner.c.status == handlers.in_status(TaskStatus.PENDING),
            inner.c.run_at <= db_now(),
            free | sticky.in_(select(mine.c.session_id)) | ~sessions.is_there(sticky),
        )
        .order_by(inner.c.run_at, inner.c.id)
        .limit(classes.c.sought if product == "postgresql" else bindparam("longest", type_=Integer()))
    )
