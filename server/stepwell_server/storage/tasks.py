"""Rows of tasks: the one claim, the one lease, the one next wake.

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
    FromClause,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.leases import LeaseTimes, Owner
from stepwell_server.domain.tasks import Handler, NewTask, Reason, Stop, Task, TaskKind, TaskStatus
from stepwell_server.domain.times import Micros
from stepwell_server.storage import dialect
from stepwell_server.storage.clock import db_now, lease_now
from stepwell_server.storage.database import Tx
from stepwell_server.storage.schema import handlers, lease_clock, tasks

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


_HANDLER: dict[str, TypeEngine[Any]] = {"namespace": Text(), "kind": Text(), "name": Text()}


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


@dataclass(frozen=True, slots=True)
class HandlerWake:
    """When something of a handler can be claimed next. The two times are of two clocks; None: never, as things are."""

    handler: Handler
    due_at: Micros | None
    """By db_now(): when the first pending task is due."""
    lapses_at: Micros | None
    """By lease_now(): when the first lease ends."""


# ---- lock, stamp


def lock(tx: Tx, task_ids: Iterable[int], *, waiting: bool) -> dict[int, Task]:
    """Lock these tasks, in one order for everybody, and return them as they are now.

    With `waiting` an absent one does not exist. Without it, it may also be locked by another: ask `existing`.
    """
    statement = _lock_sql(dialect.product(tx), waiting)
    found = tx.execute(statement, {"wanted": _id_rows(sorted(set(task_ids)))})
    return {row.id: _task(row) for row in found}


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
    return {(task.handler, task.key): task for task in map(_task, stored)}


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
        .from_select([*columns, *constants, "created_at"], source.order_by(*_handler_columns(fresh.c), fresh.c.key))
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
    due = [_task(row) for row in _lock_due(tx, allowed)]
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
    limits = _lock_limited(tx, asked)
    running = count_held(tx, [handler for handler, limit in limits.items() if limit])
    allowed = []
    for handler, credits in asked.items():
        free = credits if handler not in limits else min(credits, limits[handler] - running.get(handler, 0))
        if free > 0:
            allowed.append(Served(handler, free))
    return allowed


def _lock_limited(tx: Tx, asked: Iterable[Handler]) -> dict[Handler, int]:
    """Limits of those handlers that have one, 0 for those that are paused or being claimed by another replica."""
    product, wanted = dialect.product(tx), {"wanted": _handler_rows(asked)}
    limits = {_handler(row): 0 for row in tx.execute(_limited_sql(product, locking=False), wanted)}
    if limits:
        for row in tx.execute(_limited_sql(product, locking=True), wanted):
            limits[_handler(row)] = 0 if row.is_paused else row.concurrency
    return limits


@cache
def _limited_sql(product: str, locking: bool) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_HANDLER)
    limited = select(handlers).join(wanted, _same_handler(handlers.c, wanted.c))
    limited = limited.where(handlers.c.is_paused | handlers.c.concurrency.is_not(None))
    if not locking:
        return limited
    ordered = limited.order_by(*_handler_columns(handlers.c))
    return ordered.with_for_update(of=handlers, key_share=True, skip_locked=True)


def count_held(tx: Tx, of: Sequence[Handler]) -> dict[Handler, int]:
    """How many tasks of each handler are held, lapsed ones included until another has claimed them."""
    if not of:
        return {}
    found = tx.execute(_count_held_sql(dialect.product(tx)), {"wanted": _handler_rows(of)})
    return {_handler(row): row.held for row in found}


@cache
def _count_held_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_HANDLER)
    return select(wanted, _held_of(wanted).label("held"))


def _lock_due(tx: Tx, allowed: Sequence[Served]) -> Sequence[Row[Any]]:
    """Lock due tasks, looked up per (handler, priority): neither a million sleepers nor names nobody serves are met."""
    classes = dialect.as_rows(
        _handler_row(one.handler) | {"priority": priority} for one in allowed for priority in PRIORITIES
    )
    most = max(one.credits for one in allowed)
    return tx.execute(_due_sql(dialect.product(tx)), {"classes": classes, "most": most}).all()


@cache
def _due_sql(product: str) -> Select[Any]:
    classes = dialect.rows(product, "classes", **_HANDLER, priority=Integer())
    inner = tasks.alias("due")
    due: Select[Any] = (
        select(inner)
        .where(
            _same_handler(inner.c, classes.c),
            inner.c.priority == classes.c.priority,
            inner.c.status == _literal(TaskStatus.PENDING),
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


# ---- leases


def any_held(tx: Tx) -> bool:
    """Whether anybody holds anything."""
    held = select(tasks.c.id).where(tasks.c.status == _literal(TaskStatus.PROCESSING)).limit(1)
    return tx.execute(held).first() is not None


def tick_lease_clock(tx: Tx, times: LeaseTimes) -> bool:
    """Note that leases can be renewed now. After a gap in which nobody could, give every lease its length again.

    True: there was such a gap.
    """
    last = tx.execute(select(lease_clock.c.last_tick).with_for_update()).scalar_one()
    now = tx.execute(select(lease_now())).scalar_one()
    gap = bool(now - last > times.trusted_gap)
    if gap:
        alive = and_(tasks.c.status == _literal(TaskStatus.PROCESSING), tasks.c.locked_until > last)
        tx.execute(update(tasks).where(alive).values(locked_until=now + times.lease))
    tx.execute(update(lease_clock).values(last_tick=now))
    return gap


def sweep(tx: Tx, times: LeaseTimes, limit: int = 1000) -> list[Task]:
    """Take lapsed leases back, while the lease clock is trusted. Returns the tasks as they are now."""
    last = tx.execute(select(lease_clock.c.last_tick)).scalar_one()
    lapsed = (
        select(tasks)
        .where(
            tasks.c.status == _literal(TaskStatus.PROCESSING),
            tasks.c.locked_until <= lease_now(),
            lease_now() - last < times.trusted_gap,
        )
        .order_by(tasks.c.locked_until, tasks.c.id)  # not by id alone: SQLite would walk the whole table for that
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    found = [_task(row) for row in tx.execute(lapsed)]
    if not found:
        return []
    at = stamp(tx)
    returned = [task.lapsed(at.now) for task in found]
    save(tx, returned)
    return returned


# ---- next wake


def next_wakes(tx: Tx, of: Sequence[Handler] | None = None) -> list[HandlerWake]:
    """When the next task of each handler can be claimed: of these, or of all that were ever used.

    Pending tasks count by their time, held ones by the end of their lease. A handler that is paused, or whose limit is
    reached, gives nothing before a lease in it ends; parked and blocked tasks never count: their release is a change.
    """
    statement = _next_wakes_sql(dialect.product(tx), of is None)
    found = tx.execute(statement, {} if of is None else {"wanted": _handler_rows(of)})
    return [_handler_wake(row) for row in found]


@cache
def _next_wakes_sql(product: str, of_all: bool) -> Select[Any]:
    statement = select(
        handlers,
        _first_of(handlers, tasks.c.run_at, TaskStatus.PENDING).label("pending"),
        _first_of(handlers, tasks.c.locked_until, TaskStatus.PROCESSING).label("lapses"),
        case((handlers.c.concurrency.is_not(None), _held_of(handlers)), else_=0).label("held"),
    )
    if of_all:
        return statement
    wanted = dialect.rows(product, "wanted", **_HANDLER)
    return statement.join(wanted, _same_handler(handlers.c, wanted.c))


def _handler_wake(row: Row[Any]) -> HandlerWake:
    saturated = row.concurrency is not None and row.held >= row.concurrency
    due_at = None if row.is_paused or saturated else row.pending
    return HandlerWake(_handler(row), due_at, None if row.is_paused else row.lapses)


def _first_of(of: FromClause, moment: Any, status: TaskStatus) -> Any:
    """The earliest such moment among the tasks of a handler in that status."""
    mine = and_(_same_handler(tasks.c, of.c), tasks.c.status == _literal(status))
    return select(func.min(moment)).where(mine).correlate(of).scalar_subquery()


def _held_of(of: FromClause) -> Any:
    """How many tasks of a handler are held."""
    mine = and_(_same_handler(tasks.c, of.c), tasks.c.status == _literal(TaskStatus.PROCESSING))
    return select(func.count()).select_from(tasks).where(mine).correlate(of).scalar_subquery()


# ---- handlers


def note_handlers(tx: Tx, used: Iterable[Handler]) -> None:
    """Remember whom work is addressed to."""
    tx.execute(_note_sql(dialect.product(tx)), {"fresh": _handler_rows(used)})


@cache
def _note_sql(product: str) -> Any:
    fresh = dialect.rows(product, "fresh", **_HANDLER)
    source = select(*_handler_columns(fresh.c), literal(False), db_now()).where(true())
    return (
        dialect.insert(product, handlers)
        .from_select([*_HANDLER, "is_paused", "created_at"], source.order_by(*_handler_columns(fresh.c)))
        .on_conflict_do_nothing()
    )


def limit_handler(tx: Tx, handler: Handler, *, concurrency: int | None, is_paused: bool = False) -> None:
    """Set how many tasks of a handler may be held at once over all replicas, or pause it."""
    mine = and_(*(handlers.c[name] == value for name, value in _handler_row(handler).items()))
    tx.execute(update(handlers).where(mine).values(concurrency=concurrency, is_paused=is_paused))


# ---- rows


def _same_handler(left: Any, right: Any) -> Any:
    return and_(*(one == other for one, other in zip(_handler_columns(left), _handler_columns(right), strict=True)))


def _handler_columns(columns: Any) -> list[Any]:
    return [columns.namespace, columns.kind, columns.name]


def _id_rows(task_ids: Iterable[int]) -> str:
    return dialect.as_rows({"id": task_id} for task_id in task_ids)


def _handler_rows(of: Iterable[Handler]) -> str:
    return dialect.as_rows(map(_handler_row, of))


def _handler_row(handler: Handler) -> dict[str, Any]:
    return {"namespace": handler.namespace, "kind": handler.kind, "name": handler.name}


def _handler(row: Row[Any]) -> Handler:
    return Handler(row.namespace, TaskKind(row.kind), row.name)


def _literal(status: TaskStatus) -> Any:
    """A status as part of the statement's text, so that the partial indexes can be used."""
    return literal(status.value, literal_execute=True)


def _new_row(new: NewTask, at: Stamp) -> dict[str, Any]:
    return _handler_row(new.handler) | {
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


def _task(row: Row[Any]) -> Task:
    return Task(
        id=row.id,
        handler=_handler(row),
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
