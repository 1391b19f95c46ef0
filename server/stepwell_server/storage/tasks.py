"""Rows of tasks: lock them, write them, claim them.

Statements take and return batches. The order inside a transaction is always: lock, stamp, read, write, each a later
statement, because under READ COMMITTED a statement that waited for a lock still sees the rest as it was before.

Statements are built once per database product (`..._sql`, cached): building one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    delete,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.leases import LeaseTimes, Owner
from stepwell_server.domain.tasks import Handler, NewTask, Reason, Stop, Task, TaskStatus
from stepwell_server.domain.times import Micros
from stepwell_server.storage import dialect, handlers
from stepwell_server.storage.clock import db_now, lease_now
from stepwell_server.storage.database import Tx
from stepwell_server.storage.schema import tasks

PRIORITIES = range(10)

_MUTABLE: dict[str, TypeEngine[Any]] = {
    "run_number": Integer(),
    "reason": Text(),
    "priority": Integer(),
    "run_at": BigInteger(),
    "status": Text(),
    "fence": BigInteger(),
    "revision": BigInteger(),
    "frame_number": BigInteger(),
    "stop": Text(),
    "wake_again": Boolean(),
    "interruptions": Integer(),
    "acked": Boolean(),
    "open_steps": Text(),
    "session_id": Text(),
    "connection": BigInteger(),
    "locked_until": BigInteger(),
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """The database's two clocks, read after the last lock of a transaction."""

    now: Micros
    lease_now: Micros


@dataclass(frozen=True, slots=True)
class Served:
    """A handler that somebody can serve now, and how many of its tasks."""

    handler: Handler
    credits: int


# ---- lock, stamp


def lock(tx: Tx, task_ids: Iterable[int], *, waiting: bool) -> dict[int, Task]:
    """Lock these tasks, in one order for everybody, and return them as they are now.

    With `waiting` an absent one does not exist. Without it, it may also be locked by another: ask `existing`.
    """
    statement = _lock_sql(dialect.product(tx), waiting)
    found = tx.execute(statement, {"wanted": _id_rows(sorted(set(task_ids)))})
    return {row.id: from_row(row) for row in found}


@cache
def _lock_sql(product: str, waiting: bool) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", id=BigInteger())
    statement = select(tasks).join(wanted, tasks.c.id == wanted.c.id).order_by(tasks.c.id)
    return statement.with_for_update(of=tasks, key_share=True, skip_locked=not waiting)


def existing(tx: Tx, task_ids: Iterable[int]) -> set[int]:
    """Which of these tasks exist, whoever has them locked."""
    return set(tx.execute(_existing_sql(dialect.product(tx)), {"wanted": _id_rows(task_ids)}).scalars())


@cache
def _existing_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", id=BigInteger())
    return select(tasks.c.id).join(wanted, tasks.c.id == wanted.c.id)


def stamp(tx: Tx) -> Stamp:
    """The time of this transaction. Taken after its last lock, so that stamps of one task are in commit order."""
    return Stamp(*tx.execute(_STAMP).one())


_STAMP = select(db_now(), lease_now())


# ---- write


def insert(tx: Tx, new: Sequence[NewTask], at: Stamp) -> dict[tuple[Handler, str], Task]:
    """Store new tasks, in the order of their keys. One whose (handler, key) has a task already is left out."""
    fresh = dialect.as_rows(_new_row(one, at) for one in new)
    stored = tx.execute(_insert_sql(dialect.product(tx)), {"fresh": fresh, "at": at.now})
    return {(task.handler, task.key): task for task in map(from_row, stored)}


@cache
def _insert_sql(product: str) -> Any:
    columns: dict[str, TypeEngine[Any]] = {
        **{name: Text() for name in ("namespace", "kind", "name", "key", "reason", "payload")},
        **{name: BigInteger() for name in ("run_number", "priority", "run_at")},
    }
    constants = {
        "status": TaskStatus.PENDING,
        "fence": 0,
        "revision": 0,
        "frame_number": 0,
        "stop": Stop.NONE,
        "wake_again": False,
        "interruptions": 0,
        "acked": False,
        "open_steps": "",
    }
    fresh = dialect.rows(product, "fresh", **columns)
    values = [*(fresh.c[name] for name in columns), *map(literal, constants.values())]
    source = select(*values, bindparam("at", type_=BigInteger())).where(true())
    return (
        dialect.insert(product, tasks)
        .from_select([*columns, *constants, "created_at"], source.order_by(*handlers.columns_of(fresh.c), fresh.c.key))
        .on_conflict_do_nothing()
        .returning(tasks)
    )


def save(tx: Tx, changed: Iterable[Task]) -> None:
    """Write tasks that this transaction has locked."""
    tx.execute(_save_sql(dialect.product(tx)), {"after": dialect.as_rows(map(_mutable_row, changed))})


@cache
def _save_sql(product: str) -> Any:
    after = dialect.rows(product, "after", id=BigInteger(), **_MUTABLE)
    return update(tasks).where(tasks.c.id == after.c.id).values({name: after.c[name] for name in _MUTABLE})


def remove(tx: Tx, task_ids: Iterable[int]) -> None:
    """Delete finished tasks that this transaction has locked."""
    tx.execute(_remove_sql(dialect.product(tx)), {"gone": _id_rows(task_ids)})


@cache
def _remove_sql(product: str) -> Any:
    gone = dialect.rows(product, "gone", id=BigInteger())
    return delete(tasks).where(tasks.c.id.in_(select(gone.c.id)))


# ---- claim


def claim(tx: Tx, served: Sequence[Served], owner: Owner, times: LeaseTimes) -> list[Task]:
    """Lease due tasks to `owner`: the most urgent first, within that the oldest, of no handler more than its credit.

    A handler that is paused gives nothing; one with a limit gives what is free, counted under its lock.
    """
    allowed = _allowed(tx, served)
    if not allowed:
        return []
    due = [from_row(row) for row in _lock_due(tx, allowed)]
    due.sort(key=lambda task: (task.priority, task.run_at, task.id))
    chosen: list[Task] = []
    left = {one.handler: one.credits for one in allowed}
    for task in due:
        if left[task.handler] > 0:
            left[task.handler] -= 1
            chosen.append(task)
    if not chosen:
        return []
    at = stamp(tx)
    fences = dialect.draw_fences(tx, len(chosen))
    claimed = [task.claimed(owner, fence, at.lease_now, times) for task, fence in zip(chosen, fences, strict=True)]
    save(tx, claimed)
    return claimed


def _allowed(tx: Tx, served: Sequence[Served]) -> list[Served]:
    """What may be claimed of each handler now. Limited handlers stay locked until the transaction ends."""
    asked = {one.handler: one.credits for one in served if one.credits > 0}
    limits = handlers.lock_limited(tx, asked)
    running = handlers.count_held(tx, [handler for handler, limit in limits.items() if limit])
    allowed = []
    for handler, credits in asked.items():
        free = credits if handler not in limits else min(credits, limits[handler] - running.get(handler, 0))
        if free > 0:
            allowed.append(Served(handler, free))
    return allowed


def _lock_due(tx: Tx, allowed: Sequence[Served]) -> Sequence[Row[Any]]:
    """Lock due tasks, looked up per (handler, priority): neither a million sleepers nor names nobody serves are met."""
    classes = dialect.as_rows(
        handlers.as_row(one.handler) | {"priority": priority} for one in allowed for priority in PRIORITIES
    )
    most = max(one.credits for one in allowed)
    return tx.execute(_due_sql(dialect.product(tx)), {"classes": classes, "most": most}).all()


@cache
def _due_sql(product: str) -> Select[Any]:
    classes = dialect.rows(product, "classes", **handlers.COLUMNS, priority=Integer())
    inner = tasks.alias("due")
    due: Select[Any] = (
        select(inner)
        .where(
            handlers.same_handler(inner.c, classes.c),
            inner.c.priority == classes.c.priority,
            inner.c.status == handlers.in_status(TaskStatus.PENDING),
            inner.c.run_at <= db_now(),
        )
        .order_by(inner.c.run_at, inner.c.id)
        .limit(bindparam("most", type_=Integer()))
    )
    if product == "postgresql":
        lateral = due.with_for_update(key_share=True, skip_locked=True).lateral("found")
        return select(lateral).select_from(classes.join(lateral, true()))
    ids = due.with_only_columns(inner.c.id).correlate(classes)
    return select(tasks).select_from(classes.join(tasks, tasks.c.id.in_(ids)))


# ---- rows


def _id_rows(task_ids: Iterable[int]) -> str:
    return dialect.as_rows({"id": task_id} for task_id in task_ids)


def _new_row(new: NewTask, at: Stamp) -> dict[str, Any]:
    return handlers.as_row(new.handler) | {
        "key": new.key,
        "reason": new.reason,
        "payload": new.payload,
        "run_number": new.run_number,
        "priority": new.priority,
        "run_at": at.now if new.run_at is None else new.run_at,
    }


def _mutable_row(task: Task) -> dict[str, Any]:
    row = {name: getattr(task, name, None) for name in _MUTABLE}
    if task.owner is not None:
        row |= {"session_id": task.owner.session_id, "connection": task.owner.connection}
    return row | {"id": task.id}


def from_row(row: Row[Any]) -> Task:
    """A task from its row."""
    return Task(
        id=row.id,
        handler=handlers.from_row(row),
        key=row.key,
        run_number=row.run_number,
        reason=Reason(row.reason),
        priority=row.priority,
        run_at=row.run_at,
        status=TaskStatus(row.status),
        fence=row.fence,
        revision=row.revision,
        frame_number=row.frame_number,
        stop=Stop(row.stop),
        wake_again=bool(row.wake_again),
        interruptions=row.interruptions,
        acked=bool(row.acked),
        open_steps=row.open_steps,
        owner=None if row.session_id is None else Owner(row.session_id, row.connection),
        locked_until=row.locked_until,
        payload=row.payload,
    )
