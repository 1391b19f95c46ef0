"""Rows of hooks. A transaction that changes the row of a living hook has its task locked."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    literal,
    select,
    true,
    update,
)

from stepwell_server.domain.hooks.hooks import STORED, Hook, HookFilter, HookKey, HookStatus, NewHook
from stepwell_server.domain.spine.births import Birth, Found
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import JobEnd, JobStatus
from stepwell_server.domain.spine.tasks import Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.pages import fit
from stepwell_server.domain.values.retry import Backoff, RetryPolicy
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import LostRace, Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.database.payloads import (
    FAILURE,
    failure_from,
    failure_row,
    from_text,
    to_text,
    trace_from,
    trace_to_text,
)
from stepwell_server.storage.database.statements import Write
from stepwell_server.storage.schema.hooks import hooks
from stepwell_server.storage.schema.spine import tasks
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as task_store

KEPT = hooks
"""Table of the rows that stay when tasks of hooks end."""


# ---- write


def insert(tx: Tx, births: Sequence[Birth[NewHook]]) -> set[int]:
    """Store new hooks, in the order of their keys, and return the numbers of those that were not there yet."""
    fresh = dialect.with_payloads("fresh", map(_birth_row, births))
    return set(tx.execute(_insert_sql(dialect.product(tx)), fresh).scalars())


@cache
def _insert_sql(product: str) -> Any:
    columns = {column.name: column.type for column in hooks.columns}
    fresh = dialect.rows(product, "fresh", **columns)
    source = select(*(fresh.c[name] for name in columns)).where(true()).order_by(fresh.c.namespace, fresh.c.hook_id)
    statement = dialect.insert(product, hooks).from_select(list(columns), source)
    return statement.on_conflict_do_nothing().returning(hooks.c.id)


def ending(ends: Iterable[JobEnd]) -> Write:
    """Writes how executions ended."""
    return Write(_end_sql, {"hooks_after": dialect.as_rows(map(_end_row, ends))})


@cache
def _end_sql(product: str) -> Any:
    names = ("status", "attempts", "last_attempt_at", "ended_at", "ended_fence", *FAILURE)
    after = dialect.rows(product, "hooks_after", id=BigInteger(), **{name: hooks.c[name].type for name in names})
    statement, new = dialect.overwrite(product, hooks, after, "id")
    return statement.values({name: new[name] for name in names})


def cancel(tx: Tx, hook: Hook, at: Micros) -> None:
    """Write that a call ended a hook, with the execution that was under way."""
    begun = {"attempts": hook.attempts, "last_attempt_at": hook.last_attempt_at}
    ended = {"status": JobStatus.CANCELLED, "ended_at": at, **begun}
    tx.execute(update(hooks).where(hooks.c.id == hook.id).values(ended))


def reopen(tx: Tx, hook: Hook) -> None:
    """Write that an ended hook begins anew, with all its attempts."""
    fresh = {"status": JobStatus.OPEN, "attempts": 0, "ended_at": None, "ended_fence": None}
    tx.execute(update(hooks).where(hooks.c.id == hook.id).values(fresh))


# ---- read


def find(tx: Tx, births: Iterable[Birth[NewHook]]) -> list[Found[Hook]]:
    """Hooks that have the id or the request id of one of these."""
    wanted = dialect.as_rows(
        {"namespace": one.new.key.namespace, "hook_id": one.new.key.hook_id, "request_id": one.wanted.request_id}
        for one in births
    )
    found = {}
    for by in ("hook_id", "request_id"):
        for row in tx.execute(_same_sql(dialect.product(tx), by), {"wanted": wanted}):
            found[row.id] = Found(_from_row(row), row.request_id, row.request_hash)
    return list(found.values())


@cache
def _same_sql(product: str, by: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", namespace=Text(), hook_id=Text(), request_id=Text())
    same = [
        hooks.c[by] == wanted.c[by],
        dialect.unindexed(hooks.c.namespace) == wanted.c.namespace,
        hooks.c[by].is_not(None),
    ]
    joined, mine = dialect.look_up(product, wanted, hooks, *same)
    whole, task = task_store.with_task(product, mine, joined)
    return select(*mine.c, *_of_task(task)).select_from(whole)


def get(tx: Tx, key: HookKey) -> Hook | None:
    """The hook as it is now. None: there is none."""
    same = [hooks.c.hook_id == key.hook_id, dialect.unindexed(hooks.c.namespace) == key.namespace]
    row = tx.execute(_any_sql(dialect.product(tx)).where(*same)).first()
    return None if row is None else _from_row(row)


@cache
def _any_sql(product: str) -> Select[Any]:
    whole, task = task_store.with_task(product, hooks)
    return select(*hooks.c, *_of_task(task)).select_from(whole)


def get_many(tx: Tx, ids: Iterable[int]) -> dict[int, Hook]:
    """These hooks as they are now, by their numbers."""
    wanted = dialect.as_rows({"id": one} for one in ids)
    return {row.id: _from_row(row) for row in tx.execute(_many_sql(dialect.product(tx)), {"wanted": wanted})}


@cache
def _many_sql(product: str) -> Select[Any]:
    return _any_sql(product).where(_is_wanted(product))


def _is_wanted(product: str) -> ColumnElement[bool]:
    return dialect.among(product, hooks.c.id, dialect.rows(product, "wanted", id=BigInteger()).c.id)


def lock(tx: Tx, key: HookKey) -> tuple[Hook, Task | None] | None:
    """Lock a hook and its task until the transaction ends. None: there is no such hook.

    The task is locked first, as every transaction does that changes a living hook.
    """
    seen = get(tx, key)
    if seen is None:
        return None
    task = task_store.lock(tx, [seen.id], waiting=True).get(seen.id)
    tx.execute(select(hooks.c.id).where(hooks.c.id == seen.id).with_for_update(key_share=True))
    hook = get(tx, key)
    assert hook is not None
    if hook.status.ended is (task is not None):
        raise LostRace
    return hook, task


def lock_unserved(tx: Tx, of: Sequence[Handler], overdue: Micros, limit: int) -> list[tuple[Task, Hook]]:
    """Lock hooks of these handlers that are due for that long."""
    statement = _unserved_sql(dialect.product(tx))
    given = {"wanted": handlers.as_rows(of), "overdue": overdue, "most": limit}
    ids = [row.id for row in tx.execute(statement, given)]
    locked = task_store.lock(tx, ids, waiting=False) if ids else {}
    found = get_many(tx, locked) if locked else {}
    return [(locked[one], hook) for one, hook in found.items() if hook.status is HookStatus.PENDING]


@cache
def _unserved_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **handlers.COLUMNS)
    long_ago = db_now() - bindparam("overdue", type_=BigInteger())
    due = [
        handlers.same_handler(tasks.c, wanted.c),
        tasks.c.status == handlers.in_status(TaskStatus.PENDING),
        tasks.c.run_at <= long_ago,
    ]
    limit = bindparam("most", type_=Integer())
    if product != "postgresql":
        joined = tasks.join(wanted, true())
        return select(tasks.c.id).select_from(joined).where(*due).order_by(tasks.c.run_at, tasks.c.id).limit(limit)
    oldest = select(tasks.c.id, tasks.c.run_at).where(*due).order_by(tasks.c.run_at).limit(limit).lateral("oldest")
    found = select(oldest.c.id).select_from(wanted.join(oldest, true()))
    return found.order_by(oldest.c.run_at, oldest.c.id).limit(limit)


def refer_to(handler: Any) -> list[ColumnElement[bool]]:
    """Which hooks are of a name, given the columns that name their handler."""
    return [hooks.c.namespace == handler.namespace, hooks.c.name == handler.name]


# ---- pages


Sized: TypeAlias = tuple[Hook, int]
"""A hook without its failure, and how many bytes that has."""


def list_page(tx: Tx, wanted: HookFilter, limit: int, after: Position | None) -> tuple[list[Hook], bool]:
    """Up to `limit` hooks, the newest first, those after the position that fit into a page; and whether more are left.

    They are found along an index for each stored status. Failures are read of those alone that fit.
    """
    statuses = wanted.statuses or tuple(HookStatus)
    stored = {STORED[status] for status in statuses}
    pages = [_page(tx, wanted, status, statuses, limit, after) for status in sorted(stored)]
    merged = heapq.merge(*pages, key=lambda one: (one[0].created_at, one[0].id), reverse=True)
    found = list(islice(merged, limit + 1))
    count, more = fit([size for _, size in found], limit)
    failures = _failures(tx, [hook.id for hook, _ in found[:count]])
    return [replace(hook, failure=failures.get(hook.id)) for hook, _ in found[:count]], more


def _page(
    tx: Tx, wanted: HookFilter, stored: JobStatus, statuses: Sequence[HookStatus], limit: int, after: Position | None
) -> list[Sized]:
    product = dialect.product(tx)
    task: FromClause = tasks
    mine: FromClause = hooks
    if stored is JobStatus.OPEN and HookStatus.PENDING not in statuses:
        where = _held_in(wanted)
        joined, mine = dialect.look_up(product, tasks, hooks, hooks.c.id == tasks.c.id)
    else:
        joined, task = task_store.with_task(product, hooks)
        where = [mine.c.namespace == wanted.namespace, mine.c.status == stored]
        if wanted.name:
            where.append(mine.c.name == wanted.name)
        if stored is JobStatus.OPEN and HookStatus.PROCESSING not in statuses:
            where.append(task.c.status != TaskStatus.PROCESSING)
    if after is not None:
        where.append(beyond([mine.c.created_at, mine.c.id], after, descending=True))
    shown: list[Any] = [column for column in mine.c if column.name not in ("payload", "trace", *FAILURE)]
    shown += [literal(None).label(name) for name in FAILURE]
    size = dialect.octets(product, [mine.c.error_message, mine.c.error_details])
    statement: Select[Any] = select(*shown, *_of_task(task), size).select_from(joined).where(*where)
    order = [mine.c.created_at.desc(), mine.c.id.desc()]
    return [(_from_row(row), row.octets) for row in tx.execute(statement.order_by(*order).limit(limit + 1))]


def _failures(tx: Tx, ids: Iterable[int]) -> dict[int, Failure | None]:
    found = tx.execute(_failures_sql(dialect.product(tx)), {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {row.id: failure_from(row) for row in found}


@cache
def _failures_sql(product: str) -> Select[Any]:
    return select(hooks.c.id, *(hooks.c[name] for name in FAILURE)).where(_is_wanted(product))


def _held_in(wanted: HookFilter) -> list[Any]:
    """Executing hooks are few, and found by their tasks."""
    held = [
        tasks.c.status == handlers.in_status(TaskStatus.PROCESSING),
        tasks.c.namespace == wanted.namespace,
        tasks.c.kind == TaskKind.HOOK,
    ]
    return [*held, tasks.c.name == wanted.name] if wanted.name else held


# ---- rows


def _of_task(task: FromClause) -> list[ColumnElement[Any]]:
    return [task.c[name].label(f"task_{name}") for name in ("status", "run_at", "claimed_at", "open_steps")]


def _birth_row(birth: Birth[NewHook]) -> dict[str, Any]:
    new = birth.new
    return {
        "id": birth.id,
        "namespace": new.key.namespace,
        "name": new.name,
        "hook_id": new.key.hook_id,
        "status": JobStatus.OPEN,
        "payload": to_text(new.payload),
        "idempotency_key": new.idempotency_key,
        "attempts": 0,
        "max_attempts": new.retry.max_attempts,
        "retry_delay": new.retry.delay,
        "retry_backoff": new.retry.backoff,
        "retry_max_delay": new.retry.max_delay,
        "created_at": birth.at,
        "process_at": new.due_at(birth.at),
        "request_id": birth.wanted.request_id,
        "request_hash": birth.wanted.request_hash,
        "trace": trace_to_text(new.trace),
    }


def _end_row(one: JobEnd) -> dict[str, Any]:
    execution = one.execution
    over = execution.status is not JobStatus.OPEN
    return {
        "id": one.id,
        "status": execution.status,
        "attempts": execution.attempts,
        "last_attempt_at": execution.began_at,
        "ended_at": one.at if over else None,
        "ended_fence": execution.fence if over else None,
        **failure_row(execution.failure),
    }


def _from_row(row: Row[Any]) -> Hook:
    held = row.task_status == TaskStatus.PROCESSING
    opened = load_open(row.task_open_steps or "")
    is_open = row.status == JobStatus.OPEN
    status = HookStatus(row.status) if not is_open else HookStatus.PROCESSING if held else HookStatus.PENDING
    return Hook(
        id=row.id,
        key=HookKey(row.namespace, row.hook_id),
        name=row.name,
        status=status,
        payload=from_text(getattr(row, "payload", None)),
        attempts=opened[0].attempt if opened else row.attempts,
        retry=RetryPolicy(row.max_attempts, row.retry_delay, Backoff(row.retry_backoff), row.retry_max_delay),
        idempotency_key=row.idempotency_key,
        failure=failure_from(row),
        created_at=row.created_at,
        process_at=row.process_at,
        last_attempt_at=row.task_claimed_at if opened else row.last_attempt_at,
        next_attempt_at=row.task_run_at if status is HookStatus.PENDING else None,
        ended_at=row.ended_at,
        trace=trace_from(row),
    )
