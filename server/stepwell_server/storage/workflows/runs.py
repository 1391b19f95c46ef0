"""Rows of runs: their steps and events. Every statement takes any number of runs; their tasks are locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Row,
    Select,
    Text,
    and_,
    func,
    literal,
    not_,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.values.retry import Backoff, RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import Event, Step, StepStatus, StepType
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.payloads import (
    failure_from,
    failure_row,
    from_text,
    to_text,
    trace_from,
    trace_to_text,
)
from stepwell_server.storage.database.statements import Statement, Write
from stepwell_server.storage.schema.spine import tasks
from stepwell_server.storage.schema.workflows import workflow_events, workflow_steps

_RUN: dict[str, TypeEngine[Any]] = {"task_id": BigInteger(), "run_number": Integer()}
_STEP: dict[str, TypeEngine[Any]] = {column.name: column.type for column in workflow_steps.columns}
_EVENT: dict[str, TypeEngine[Any]] = {column.name: column.type for column in workflow_events.columns}
_STEP_KEY = ("task_id", "run_number", "name")


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run: the number of its instance, which is also its task's, and which run of it."""

    task_id: int
    run_number: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many undelivered events of a type are of interest to a run."""

    run: RunRef
    type: str
    limit: int


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event, whose it is, and what its sender called the request."""

    run: RunRef
    namespace: str
    event: Event
    request_id: str | None = None
    request_hash: str | None = None


# ---- read


def steps_of(tx: Tx, names: Iterable[tuple[RunRef, str]], runs: Iterable[RunRef]) -> list[tuple[int, Step]]:
    """The named steps that exist, and all that wait in these runs, each with the number of its task."""
    named = dialect.as_rows(_ref_row(run) | {"name": name} for run, name in names)
    given = {"named": named, "runs": dialect.as_rows(map(_ref_row, runs))}
    return [(row.task_id, step_from(row)) for row in tx.execute(_steps_sql(dialect.product(tx)), given)]


@cache
def _steps_sql(product: str) -> Any:
    named = dialect.rows(product, "named", **_RUN, name=Text())
    runs = dialect.rows(product, "runs", **_RUN)
    same_name = [workflow_steps.c[key] == named.c[key] for key in _STEP_KEY]
    return union_all(_steps_for(product, named, *same_name), _steps_for(product, runs, *_same_run(runs), _is_waiting()))


def _steps_for(product: str, given: FromClause, *same: Any) -> Select[Any]:
    joined, steps = dialect.look_up(product, given, workflow_steps, *same)
    return select(steps).select_from(joined)


def _is_waiting() -> ColumnElement[bool]:
    return workflow_steps.c.status == literal(StepStatus.WAITING.value, literal_execute=True)


def steps_ahead(
    names: Iterable[tuple[int, str]], task_ids: Iterable[int], keep: Callable[[Iterable[tuple[int, Step]]], None]
) -> Statement[None]:
    """What `steps_of` reads, for tasks that an earlier statement locks: only they say which run it is."""
    named = dialect.as_rows({"task_id": task_id, "name": name} for task_id, name in names)
    ahead = dialect.as_rows({"task_id": task_id} for task_id in task_ids)
    given = {"steps_named": named, "steps_ahead": ahead}
    return Statement(_ahead_sql, given, lambda rows: keep((row.task_id, step_from(row)) for row in rows))


@cache
def _ahead_sql(product: str) -> Any:
    named = dialect.rows(product, "steps_named", task_id=BigInteger(), name=Text())
    ahead = dialect.rows(product, "steps_ahead", task_id=BigInteger())
    return union_all(
        _steps_ahead(product, named, workflow_steps.c.name == named.c.name),
        _steps_ahead(product, ahead, _is_waiting()),
    )


def _steps_ahead(product: str, given: FromClause, which: ColumnElement[bool]) -> Select[Any]:
    joined, task = dialect.look_up(product, given, tasks, tasks.c.id == given.c.task_id)
    same = [workflow_steps.c.task_id == task.c.id, workflow_steps.c.run_number == task.c.run_number, which]
    joined, steps = dialect.look_up(product, joined, workflow_steps, *same)
    return select(steps).select_from(joined)


def changed_by_themselves(tx: Tx, runs: Iterable[RunRef]) -> list[tuple[int, Step]]:
    """All steps of these runs but the results of bodies, which whoever reported them knows, and which may be large."""
    given = {"runs": dialect.as_rows(map(_ref_row, runs))}
    return [(row.task_id, step_from(row)) for row in tx.execute(_changed_sql(dialect.product(tx)), given)]


@cache
def _changed_sql(product: str) -> Select[Any]:
    runs = dialect.rows(product, "runs", **_RUN)
    result = and_(workflow_steps.c.type == StepType.DO.value, workflow_steps.c.status == StepStatus.COMPLETED.value)
    return _steps_for(product, runs, *_same_run(runs), not_(result))


def pending_events(tx: Tx, wanted: Iterable[Wanted]) -> list[tuple[int, Event]]:
    """The oldest undelivered events, up to the limit of each, with the number of the task; the oldest first."""
    rows = dialect.as_rows(_ref_row(one.run) | {"type": one.type, "most": one.limit} for one in wanted)
    found = tx.execute(_pending_sql(dialect.product(tx)), {"wanted": rows})
    return sorted(((row.task_id, event_from(row)) for row in found), key=lambda one: one[1].position)


@cache
def _pending_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_RUN, type=Text(), most=Integer())
    inner = workflow_events.alias("pending")
    mine = [inner.c[key] == wanted.c[key] for key in ("task_id", "run_number", "type")]
    pending = select(inner).where(*mine, inner.c.delivered_at.is_(None)).order_by(inner.c.position)
    if product == "postgresql":
        lateral = pending.limit(wanted.c.most).lateral("found")
        return select(lateral).select_from(wanted.join(lateral, true()))
    # SQLite has no LATERAL: the oldest are those with fewer than the limit before them.
    place = func.row_number().over(partition_by=[inner.c.task_id, inner.c.type], order_by=inner.c.position)
    placed = (
        select(inner, place.label("place"), wanted.c.most.label("most"))
        .select_from(wanted.join(inner, and_(*mine, inner.c.delivered_at.is_(None))))
        .subquery("placed")
    )
    return select(placed).where(placed.c.place <= placed.c.most)


def sent_before(tx: Tx, requests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], SentEvent]:
    """Events that were stored under these (namespace, request id)."""
    wanted = dialect.as_rows({"namespace": space, "request_id": request} for space, request in requests)
    found = tx.execute(_sent_sql(dialect.product(tx)), {"wanted": wanted})
    return {(row.namespace, row.request_id): _sent_event(row) for row in found}


@cache
def _sent_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", namespace=Text(), request_id=Text())
    same = [workflow_events.c[key] == wanted.c[key] for key in ("namespace", "request_id")]
    joined, events = dialect.look_up(product, wanted, workflow_events, *same, workflow_events.c.request_id.is_not(None))
    return select(events).select_from(joined)


def all_steps(tx: Tx, runs: Sequence[RunRef]) -> dict[RunRef, list[Step]]:
    """All steps of these runs, in the order of their history."""
    wanted = dialect.as_rows(map(_ref_row, runs))
    found: dict[RunRef, list[Step]] = {run: [] for run in runs}
    for row in tx.execute(_all_sql(dialect.product(tx)), {"wanted": wanted}):
        found[RunRef(row.task_id, row.run_number)].append(step_from(row))
    return found


@cache
def _all_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_RUN)
    joined, steps = dialect.look_up(product, wanted, workflow_steps, *_same_run(wanted))
    return select(steps).select_from(joined).order_by(steps.c.task_id, steps.c.position)


def next_timer(tx: Tx) -> Micros | None:
    """When the first wait of a run that a worker holds is over."""
    held = tasks.c.status == literal("processing", literal_execute=True)
    mine = [tasks.c.id == workflow_steps.c.task_id, tasks.c.run_number == workflow_steps.c.run_number]
    joined, steps = dialect.look_up(dialect.product(tx), tasks, workflow_steps, *mine, _is_waiting())
    due = func.coalesce(steps.c.next_retry_at, steps.c.wake_at)
    found: Micros | None = tx.execute(select(func.min(due)).select_from(joined).where(held)).scalar_one()
    return found


# ---- write


def saving_steps(changed: Iterable[tuple[RunRef, Step]]) -> Write:
    """Stores steps, new ones and changed ones alike."""
    rows = (_ref_row(run) | _step_row(step) for run, step in changed)
    return Write(_save_sql, dialect.with_payloads("steps_after", rows))


@cache
def _save_sql(product: str) -> Any:
    after = dialect.rows(product, "steps_after", **_STEP)
    source = select(*(after.c[name] for name in _STEP)).where(true())
    statement = dialect.insert(product, workflow_steps).from_select(list(_STEP), source)
    changing = [name for name in _STEP if name not in (*_STEP_KEY, "position", "created_at", "type", "event_type")]
    return statement.on_conflict_do_update(
        index_elements=_STEP_KEY, set_={name: statement.excluded[name] for name in changing}
    )


def inserting_events(sent: Sequence[SentEvent]) -> Write:
    """Stores new events. A request id that another transaction took meanwhile is met by looking again."""
    return Write(_insert_events_sql, dialect.with_payloads("events_fresh", map(_event_row, sent)), stores=len(sent))


@cache
def _insert_events_sql(product: str) -> Any:
    fresh = dialect.rows(product, "events_fresh", **_EVENT)
    source = select(*(fresh.c[name] for name in _EVENT)).where(true())
    statement = dialect.insert(product, workflow_events).from_select(list(_EVENT), source)
    return statement.on_conflict_do_nothing().returning(workflow_events.c.position)


def delivering(taken: Iterable[tuple[RunRef, Event]]) -> Write:
    """Stores which step took an event, and when."""
    rows = dialect.as_rows(
        _ref_row(run)
        | {"position": event.position, "delivered_at": event.delivered_at, "consumed_by_step": event.consumed_by_step}
        for run, event in taken
    )
    return Write(_deliver_sql, {"events_taken": rows})


@cache
def _deliver_sql(product: str) -> Any:
    taken = dialect.rows(
        product, "events_taken", **_RUN, position=BigInteger(), delivered_at=BigInteger(), consumed_by_step=Text()
    )
    statement, new = dialect.overwrite(product, workflow_events, taken, "task_id", "run_number", "position")
    return statement.values(delivered_at=new.delivered_at, consumed_by_step=new.consumed_by_step)


# ---- rows


def _same_run(wanted: Any) -> list[Any]:
    return [workflow_steps.c[key] == wanted.c[key] for key in _RUN]


def _ref_row(run: RunRef) -> dict[str, Any]:
    return {"task_id": run.task_id, "run_number": run.run_number}


def _step_row(step: Step) -> dict[str, Any]:
    policy = step.policy
    row = {
        "name": step.name,
        "position": step.position,
        "revision": step.revision,
        "type": step.type,
        "status": step.status,
        "attempts": step.attempts,
        "next_retry_at": step.next_retry_at,
        "wake_at": step.wake_at,
        "event_type": step.event_type,
        "event_at": step.event_at,
        "result": to_text(step.result),
        "created_at": step.created_at,
        "updated_at": step.updated_at,
        "trace": trace_to_text(step.trace),
        **failure_row(step.failure),
    }
    if policy is not None:
        row |= {
            "timeout": policy.timeout,
            "max_attempts": policy.retry.max_attempts,
            "retry_delay": policy.retry.delay,
            "retry_backoff": policy.retry.backoff,
            "retry_max_delay": policy.retry.max_delay,
        }
    return row


def step_from(row: Any) -> Step:
    """A step from its row."""
    policy = None
    if row.timeout is not None:
        retry = RetryPolicy(row.max_attempts, row.retry_delay, Backoff(row.retry_backoff), row.retry_max_delay)
        policy = StepPolicy(retry, row.timeout)
    return Step(
        name=row.name,
        type=StepType(row.type),
        status=StepStatus(row.status),
        position=row.position,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        attempts=row.attempts,
        policy=policy,
        next_retry_at=row.next_retry_at,
        wake_at=row.wake_at,
        event_type=row.event_type,
        event_at=row.event_at,
        result=from_text(row.result),
        failure=failure_from(row),
        trace=trace_from(row),
    )


def _event_row(sent: SentEvent) -> dict[str, Any]:
    event = sent.event
    return _ref_row(sent.run) | {
        "position": event.position,
        "namespace": sent.namespace,
        "type": event.type,
        "payload": to_text(event.payload),
        "created_at": event.created_at,
        "delivered_at": event.delivered_at,
        "consumed_by_step": event.consumed_by_step,
        "request_id": sent.request_id,
        "request_hash": sent.request_hash,
        "trace": trace_to_text(event.trace),
    }


def event_from(row: Row[Any]) -> Event:
    """An event from its row."""
    return Event(
        position=row.position,
        type=row.type,
        payload=from_text(row.payload),
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        consumed_by_step=row.consumed_by_step,
        trace=trace_from(row),
    )


def _sent_event(row: Row[Any]) -> SentEvent:
    run = RunRef(row.task_id, row.run_number)
    return SentEvent(run, row.namespace, event_from(row), row.request_id, row.request_hash)
