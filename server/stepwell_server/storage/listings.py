"""Pages of instances and of histories. Every one is read along an index, from where the page before ended."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, select

from stepwell_server.domain.workflows import Event, Instance, InstanceFilter, InstanceStatus, Step
from stepwell_server.storage.database import Tx
from stepwell_server.storage.paging import Position, beyond
from stepwell_server.storage.runs import RunRef, event_from, step_from
from stepwell_server.storage.schema import (
    tasks,
    workflow_events,
    workflow_instances,
    workflow_labels,
    workflow_steps,
)
from stepwell_server.storage.workflows import from_row, with_task


def instances(tx: Tx, wanted: InstanceFilter, limit: int, after: Position | None) -> list[Instance]:
    """Up to `limit` instances by time of creation, those after the position."""
    wanted.check()
    if wanted.labels:
        pages = [_by_label(tx, wanted, limit, after)]
    elif wanted.statuses:
        pages = [_by_status(tx, wanted, status, limit, after) for status in dict.fromkeys(wanted.statuses)]
    else:
        pages = [_by_status(tx, wanted, None, limit, after)]
    merged = heapq.merge(*pages, key=lambda one: (one.created_at, one.id), reverse=not wanted.oldest_first)
    return [one for one, _ in zip(merged, range(limit), strict=False)]


def _by_status(
    tx: Tx, wanted: InstanceFilter, status: InstanceStatus | None, limit: int, after: Position | None
) -> list[Instance]:
    table = workflow_instances.c
    where = _where(wanted, table, after)
    if status is not None:
        where.append(table.status == status)
    joined = workflow_instances.outerjoin(tasks, tasks.c.id == table.id)
    statement = with_task(payloads=wanted.with_payloads).select_from(joined).where(*where)
    return _page(tx, wanted, statement, table, limit)


def _by_label(tx: Tx, wanted: InstanceFilter, limit: int, after: Position | None) -> list[Instance]:
    """Along the index of one label; the other labels and the status are looked up for each row met."""
    (name, value), *others = wanted.labels.items()
    label = workflow_labels.c
    where = [*_where(wanted, label, after), label.name == name, label.value == value]
    where.extend(_has_label(other) for other in others)
    if wanted.statuses:
        where.append(workflow_instances.c.status.in_(wanted.statuses))
    joined = workflow_labels.join(workflow_instances, workflow_instances.c.id == label.id).outerjoin(
        tasks, tasks.c.id == workflow_instances.c.id
    )
    statement = with_task(payloads=wanted.with_payloads).select_from(joined).where(*where)
    return _page(tx, wanted, statement, label, limit)


def _has_label(label: tuple[str, str]) -> Any:
    name, value = label
    other = workflow_labels.alias()
    mine = workflow_labels.c
    same = and_(
        other.c.namespace == mine.namespace,
        other.c.workflow == mine.workflow,
        other.c.name == name,
        other.c.value == value,
        other.c.created_at == mine.created_at,
        other.c.id == mine.id,
    )
    return select(other.c.id).where(same).correlate(workflow_labels).exists()


def _where(wanted: InstanceFilter, table: Any, after: Position | None) -> list[Any]:
    """Between two bounds. A position replaces the one that it implies: SQLite would search by either of the two."""
    where = [table.namespace == wanted.namespace, table.workflow == wanted.workflow]
    if wanted.created_from is not None and (after is None or not wanted.oldest_first):
        where.append(table.created_at >= wanted.created_from)
    if wanted.created_before is not None and (after is None or wanted.oldest_first):
        where.append(table.created_at < wanted.created_before)
    if after is not None:
        where.append(beyond([table.created_at, table.id], after, descending=not wanted.oldest_first))
    return where


def _page(tx: Tx, wanted: InstanceFilter, statement: Any, table: Any, limit: int) -> list[Instance]:
    order = [table.created_at, table.id]
    ordered = statement.order_by(*(order if wanted.oldest_first else [column.desc() for column in order]))
    return [from_row(row) for row in tx.execute(ordered.limit(limit))]


def history(tx: Tx, run: RunRef, limit: int, after: Position | None, *, descending: bool) -> list[Step | Event]:
    """Up to `limit` steps and events of a run, in the order in which they were stored, those after the position."""
    pages: list[Sequence[Step | Event]] = [
        [step_from(row) for row in _part(tx, workflow_steps, run, limit, after, descending=descending)],
        [event_from(row) for row in _part(tx, workflow_events, run, limit, after, descending=descending)],
    ]
    merged = heapq.merge(*pages, key=lambda one: one.position, reverse=descending)
    return [one for one, _ in zip(merged, range(limit), strict=False)]


def _part(tx: Tx, table: Any, run: RunRef, limit: int, after: Position | None, *, descending: bool) -> Any:
    position = table.c.position
    where = [table.c.task_id == run.task_id, table.c.run_number == run.run_number]
    if after is not None:
        where.append(beyond([position], after, descending=descending))
    return tx.execute(select(table).where(*where).order_by(position.desc() if descending else position).limit(limit))
