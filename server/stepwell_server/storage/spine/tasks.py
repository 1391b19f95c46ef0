"""Rows of tasks: lock them, write them.

Statements take and return batches. The order inside a transaction is always: lock, stamp, read, write, each a later
statement, because under READ COMMITTED a statement that waited for a lock still sees the rest as it was before.

Statements are built once per database product (`..._sql`, cached): building one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    delete,
    select,
    true,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import NewTask, Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now, lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Statement, Write, ask, write
from stepwell_server.storage.schema.spine import tasks
from stepwell_server.storage.spine import handlers

TaskKey: TypeAlias = tuple[Handler, str]
"""What a task is about: its handler, and the key that has at most one task."""

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
    "step_count": Integer(),
    "pending_events": Integer(),
    "sticky_session": Text(),
    "cached_revision": BigInteger(),
    "claimed_at": BigInteger(),
    "resolved_revision": BigInteger(),
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """The database's two clocks, read after the last lock of a transaction."""

    now: Micros
    lease_now: Micros


# ---- lock, stamp


def lock(tx: Tx, task_ids: Iterable[int], *, waiting: bool) -> dict[int, Task]:
    """Lock these tasks, in one order for everybody, and return them as they are now.

    With `waiting` an absent one does not exist. Without it, it may also be locked by another: ask `existing`.
    """
    return ask(tx, locking(task_ids, waiting=waiting))


def locking(task_ids: Iterable[int], *, waiting: bool) -> Statement[dict[int, Task]]:
    """The statement of `lock`."""
    given = {"wanted": _id_rows(sorted(set(task_ids)))}
    return Statement(partial(_lock_sql, waiting=waiting), given, _by_id)


def _by_id(rows: Sequence[Any]) -> dict[int, Task]:
    return {task.id: task for task in map(from_row, rows)}


@cache
def _lock_sql(product: str, *, waiting: bool) -> Select[Any]:
    statement = select(tasks).where(_is_wanted(product)).order_by(tasks.c.id)
    return statement.with_for_update(key_share=True, skip_locked=not waiting)


def get(tx: Tx, task_ids: Iterable[int]) -> dict[int, Task]:
    """These tasks as they are, without locking them."""
    found = tx.execute(_get_sql(dialect.product(tx)), {"wanted": _id_rows(task_ids)})
    return {row.id: from_row(row) for row in found}


@cache
def _get_sql(product: str) -> Select[Any]:
    return select(tasks).where(_is_wanted(product))


def existing(tx: Tx, task_ids: Iterable[int]) -> set[int]:
    """Which of these tasks exist, whoever has them locked."""
    return set(tx.execute(_existing_sql(dialect.product(tx)), {"wanted": _id_rows(task_ids)}).scalars())


@cache
def _existing_sql(product: str) -> Select[Any]:
    return select(tasks.c.id).where(_is_wanted(product))


def _is_wanted(product: str) -> ColumnElement[bool]:
    wanted = dialect.rows(product, "wanted", id=BigInteger())
    return dialect.among(product, tasks.c.id, wanted.c.id) & handlers.is_known(tasks.c.kind)


def lock_keys(tx: Tx, keys: Iterable[TaskKey], *, waiting: bool) -> list[Task]:
    """Lock the tasks of these keys, as `lock` does."""
    return ask(tx, locking_keys(keys, waiting=waiting))


def locking_keys(keys: Iterable[TaskKey], *, waiting: bool) -> Statement[list[Task]]:
    """The statement of `lock_keys`."""
    return Statement(partial(_lock_keys_sql, waiting=waiting), {"wanted": _key_rows(keys)}, _in_order)


def _in_order(rows: Sequence[Any]) -> list[Task]:
    return [from_row(row) for row in rows]


@cache
def _lock_keys_sql(product: str, *, waiting: bool) -> Select[Any]:
    found, mine = _of_keys(product)
    ids = select(mine.c.id).select_from(found).subquery("ids")
    statement = select(tasks).where(dialect.among(product, tasks.c.id, ids.c.id)).order_by(tasks.c.id)
    return statement.with_for_update(key_share=True, skip_locked=not waiting)


def existing_keys(tx: Tx, keys: Iterable[TaskKey]) -> set[TaskKey]:
    """Which of these keys have a task, whoever has it locked."""
    found = tx.execute(_existing_keys_sql(dialect.product(tx)), {"wanted": _key_rows(keys)})
    return {(handlers.from_row(row), row.key) for row in found}


@cache
def _existing_keys_sql(product: str) -> Select[Any]:
    found, mine = _of_keys(product)
    return select(*handlers.columns_of(mine.c), mine.c.key).select_from(found)


def _of_keys(product: str) -> tuple[FromClause, FromClause]:
    wanted = dialect.rows(product, "wanted", **handlers.COLUMNS, key=Text())
    same = handlers.same_handler(tasks.c, wanted.c) & (tasks.c.key == wanted.c.key)
    return dialect.look_up(product, wanted, tasks, same)


def with_task(product: str, mine: FromClause, joined: FromClause | None = None) -> tuple[FromClause, FromClause]:
    """Rows, alone or in a join, each with the task of the same number if there is one, and these tasks."""
    return dialect.look_up(product, mine if joined is None else joined, tasks, tasks.c.id == mine.c.id, outer=True)


def held(tx: Tx) -> list[Task]:
    """Everything that anybody holds."""
    return [from_row(row) for row in tx.execute(select(tasks).where(*is_held()))]


def is_held() -> tuple[ColumnElement[bool], ...]:
    """Whether somebody holds a task of a kind that this server knows."""
    return tasks.c.status == handlers.in_status(TaskStatus.PROCESSING), handlers.is_known(tasks.c.kind)


def lock_held(tx: Tx, session_id: str) -> list[Task]:
    """Lock everything that a session holds, in the order of everybody."""
    mine = [*is_held(), tasks.c.session_id == session_id]
    statement = select(tasks).where(*mine).order_by(tasks.c.id).with_for_update(key_share=True)
    return [from_row(row) for row in tx.execute(statement)]


def stamp(tx: Tx) -> Stamp:
    """The time of this transaction. Taken after its last lock, so that stamps of one task are in commit order."""
    return ask(tx, STAMPING)


_STAMP = select(db_now().label("now"), lease_now().label("lease_now"))
STAMPING = Statement(lambda product: _STAMP, read=lambda rows: Stamp(*rows[0]))
"""The statement of `stamp`."""


def drawing(count: int) -> Statement[list[int]]:
    """The statement of `dialect.draw_numbers`."""
    return Statement(dialect.draw_sql, {"count": count}, partial(dialect.drawn, count))


# ---- write


def insert(tx: Tx, new: Sequence[NewTask], at: Stamp) -> dict[TaskKey, Task]:
    """Store new tasks, in the order of their keys. One whose (handler, key) has a task already is left out."""
    unnumbered = sum(one.id is None for one in new)
    numbers = iter(dialect.draw_numbers(tx, unnumbered) if unnumbered else ())
    rows = (_new_row(one, next(numbers) if one.id is None else one.id, at) for one in new)
    stored = tx.execute(_insert_sql(dialect.product(tx)), dialect.with_payloads("fresh", rows))
    return {(task.handler, task.key): task for task in map(from_row, stored)}


@cache
def _insert_sql(product: str) -> Any:
    columns: dict[str, TypeEngine[Any]] = {column.name: column.type for column in tasks.columns}
    fresh = dialect.rows(product, "fresh", **columns)
    source = select(*(fresh.c[name] for name in columns)).where(true())
    return (
        dialect.insert(product, tasks)
        .from_select(list(columns), source.order_by(*handlers.columns_of(fresh.c), fresh.c.key))
        .on_conflict_do_nothing(index_elements=[*handlers.COLUMNS, "key"])
        .returning(tasks)
    )


def born(new: NewTask, number: int, at: Stamp) -> Task:
    """A new task as it is stored under this number."""
    row = _new_row(new, number, at)
    return from_row([row.get(column.name) for column in tasks.columns])


def save(tx: Tx, changed: Iterable[Task]) -> None:
    """Write tasks that this transaction has locked."""
    write(tx, [saving(changed)])


def saving(changed: Iterable[Task]) -> Write:
    """The statement of `save`."""
    return Write(_save_sql, {"tasks_after": dialect.as_rows(map(_mutable_row, changed))})


@cache
def _save_sql(product: str) -> Any:
    after = dialect.rows(product, "tasks_after", id=BigInteger(), **_MUTABLE)
    statement, new = dialect.overwrite(product, tasks, after, "id")
    return statement.values({name: new[name] for name in _MUTABLE})


def writing(changed: Collection[Task], gone: Collection[int]) -> list[Write]:
    """The statements of `save` and `remove`, as far as there is something for them."""
    return [*([saving(changed)] if changed else ()), *([removing(gone)] if gone else ())]


def remove(tx: Tx, task_ids: Iterable[int]) -> None:
    """Delete finished tasks that this transaction has locked."""
    write(tx, [removing(task_ids)])


def removing(task_ids: Iterable[int]) -> Write:
    """The statement of `remove`."""
    return Write(_remove_sql, {"tasks_gone": _id_rows(task_ids)})


@cache
def _remove_sql(product: str) -> Any:
    gone = dialect.rows(product, "tasks_gone", id=BigInteger())
    return delete(tasks).where(dialect.among(product, tasks.c.id, gone.c.id))


# ---- rows


def _key_rows(keys: Iterable[TaskKey]) -> str:
    return dialect.as_rows(handlers.as_row(handler) | {"key": key} for handler, key in keys)


def _id_rows(task_ids: Iterable[int]) -> str:
    return dialect.as_rows({"id": task_id} for task_id in task_ids)


def _new_row(new: NewTask, number: int, at: Stamp) -> dict[str, Any]:
    lease = new.lease
    return handlers.as_row(new.handler) | {
        "id": number,
        "key": new.key,
        "run_number": new.run_number,
        "reason": new.reason,
        "priority": new.priority,
        "run_at": at.now if new.run_at is None else new.run_at,
        "status": TaskStatus.PENDING if lease is None else TaskStatus.PROCESSING,
        "fence": 0 if lease is None else lease.fence,
        "revision": new.revision,
        "frame_number": 0,
        "stop": Stop.NONE,
        "wake_again": False,
        "interruptions": 0,
        "acked": False,
        "open_steps": "",
        "session_id": None if lease is None else lease.owner.session_id,
        "connection": None if lease is None else lease.owner.connection,
        "locked_until": None if lease is None else lease.until,
        "payload": None if new.payload is None else new.payload.encode(),
        "created_at": at.now,
        "step_count": 0,
        "pending_events": 0,
        "cached_revision": 0,
        "claimed_at": None if lease is None else at.now,
        "resolved_revision": 0,
    }


def _mutable_row(task: Task) -> dict[str, Any]:
    row = {name: getattr(task, name, None) for name in _MUTABLE}
    if task.owner is not None:
        row |= {"session_id": task.owner.session_id, "connection": task.owner.connection}
    return row | {"id": task.id}


_POSITIONS = {column.name: position for position, column in enumerate(tasks.columns)}
_HANDLER_OF = itemgetter(*(_POSITIONS[name] for name in handlers.COLUMNS))
_OWNER_OF = itemgetter(_POSITIONS["session_id"], _POSITIONS["connection"])
_FIELDS_OF = itemgetter(*(_POSITIONS.get(name, 0) for name in Task._fields))
"""The columns of each field of a task, in the order of its fields; of those with another name any, to be replaced."""
_HANDLER, _OWNER = Task._fields.index("handler"), Task._fields.index("owner")
_READ: list[tuple[int, Callable[[Any], Any]]] = [
    (Task._fields.index("reason"), {reason.value: reason for reason in Reason}.__getitem__),
    (Task._fields.index("status"), {status.value: status for status in TaskStatus}.__getitem__),
    (Task._fields.index("stop"), {stop.value: stop for stop in Stop}.__getitem__),
    (Task._fields.index("wake_again"), bool),  # SQLite has numbers for it
    (Task._fields.index("acked"), bool),
]


def from_row(row: Sequence[Any]) -> Task:
    """A task from a row that has all columns of the table in their order: it is taken apart as a whole, for speed."""
    values = tuple(row)
    fields = list(_FIELDS_OF(values))
    for position, read in _READ:
        fields[position] = read(fields[position])
    session_id, connection = _OWNER_OF(values)
    fields[_HANDLER] = _handler(*_HANDLER_OF(values))
    fields[_OWNER] = None if session_id is None else Owner(session_id, connection)
    return Task._make(fields)


@lru_cache(4096)
def _handler(namespace: str, kind: str, name: str) -> Handler:
    return Handler(namespace, TaskKind(kind), name)
