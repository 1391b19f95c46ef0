"""Pages of instances and of histories. Every one is read along an index, from where the page before ended."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import FromClause, Select, and_, select

from stepwell_server.domain.values.pages import fit
from stepwell_server.domain.workflows.instances import Event, Instance, InstanceFilter, InstanceStatus, Step
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.workflows import (
    workflow_events,
    workflow_instances,
    workflow_labels,
    workflow_steps,
)
from stepwell_server.storage.workflows.instances import from_row, get_many, instance_octets, with_task
from stepwell_server.storage.workflows.runs import RunRef, event_from, step_from

Sized: TypeAlias = tuple[Instance, int]
"""An instance without its payloads, and how many bytes it has with what is wanted of it."""


def instances(tx: Tx, wanted: InstanceFilter, limit: int, after: Position | None) -> tuple[list[Instance], bool]:
    """Up to `limit` instances by time of creation, those after the position that fit into a page; and whether more are
    left. Payloads are read of those alone."""
    wanted.check()
    if wanted.labels:
        pages = [_by_label(tx, wanted, limit, after)]
    elif wanted.statuses:
        pages = [_by_status(tx, wanted, status, limit, after) for status in dict.fromkeys(wanted.statuses)]
    else:
        pages = [_by_status(tx, wanted, None, limit, after)]
    merged = heapq.merge(*pages, key=lambda one: (one[0].created_at, one[0].id), reverse=not wanted.oldest_first)
    found = list(islice(merged, limit + 1))
    count, more = fit([size for _, size in found], limit)
    page = [one for one, _ in found[:count]]
    whole = get_many(tx, [one.id for one in page]) if wanted.with_payloads and page else {}
    return [whole.get(one.id, one) for one in page], more


def _by_status(
    tx: Tx, wanted: InstanceFilter, status: InstanceStatus | None, limit: int, after: Position | None
) -> list[Sized]:
    table = workflow_instances.c
    where = _where(wanted, table, after)
    if status is not None:
        where.append(table.status == status)
    statement = with_task(dialect.product(tx), workflow_instances, payloads=False).where(*where)
    return _page(tx, wanted, statement, workflow_instances, table, limit)


def _by_label(tx: Tx, wanted: InstanceFilter, limit: int, after: Position | None) -> list[Sized]:
    """Along the index of one label; the other labels and the status are looked up for each row met."""
    (name, value), *others = wanted.labels.items()
    label, product = workflow_labels.c, dialect.product(tx)
    where = [*_where(wanted, label, after), label.name == name, label.value == value]
    where.extend(_has_label(product, other) for other in others)
    labelled = workflow_instances.c.id == label.id
    joined, mine = dialect.look_up(product, workflow_labels, workflow_instances, labelled)
    if wanted.statuses:
        where.append(mine.c.status.in_(wanted.statuses))
    statement = with_task(product, mine, joined, payloads=False).where(*where)
    return _page(tx, wanted, statement, mine, label, limit)


def _has_label(product: str, label: tuple[str, str]) -> Any:
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
    return dialect.fenced(product, select(other.c.id).where(same).correlate(workflow_labels)).exists()


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


def _page(tx: Tx, wanted: InstanceFilter, statement: Any, mine: FromClause, table: Any, limit: int) -> list[Sized]:
    order = [table.created_at, table.id]
    ordered = statement.order_by(*(order if wanted.oldest_first else [column.desc() for column in order]))
    size = instance_octets(dialect.product(tx), mine, payloads=wanted.with_payloads)
    return [(from_row(row), row.octets) for row in tx.execute(ordered.add_columns(size).limit(limit + 1))]


def history(
    tx: Tx, run: RunRef, limit: int, after: Position | None, *, descending: bool
) -> tuple[list[Step | Event], bool]:
    """Up to `limit` steps and events of a run in the order of their storing, those after the position that fit into a
    page; and whether more are left. Payloads are read of those alone."""
    sizes: dict[int, int] = {}
    for table in (workflow_steps, workflow_events):
        where = [] if after is None else [beyond([table.c.position], after, descending=descending)]
        columns = [table.c.position, _octets(tx, table)]
        found = _of_run(table, run, columns, where, descending=descending).limit(limit + 1)
        sizes |= {row.position: row.octets for row in tx.execute(found)}
    order = sorted(sizes, reverse=descending)
    count, more = fit([sizes[one] for one in order], limit)
    return _entries(tx, run, order[:count], descending=descending), more


def _entries(tx: Tx, run: RunRef, positions: Sequence[int], *, descending: bool) -> list[Step | Event]:
    if not positions:
        return []
    pages: list[list[Step | Event]] = []
    for table, read in ((workflow_steps, step_from), (workflow_events, event_from)):
        where = [table.c.position.between(min(positions), max(positions))]
        rows = tx.execute(_of_run(table, run, table.columns, where, descending=descending))
        pages.append([read(row) for row in rows])
    return list(heapq.merge(*pages, key=lambda one: one.position, reverse=descending))


def changed_sizes(tx: Tx, run: RunRef, since: int) -> dict[int, int]:
    """How many bytes the steps of a run have that changed after the revision, by their positions, in their order."""
    where = [workflow_steps.c.revision > since]
    columns = [workflow_steps.c.position, _octets(tx, workflow_steps)]
    found = tx.execute(_of_run(workflow_steps, run, columns, where))
    return {row.position: row.octets for row in found}


def changed_steps(tx: Tx, run: RunRef, since: int, positions: Sequence[int]) -> list[Step]:
    """Steps of a run that changed after the revision, from the first of these positions to the last."""
    position = workflow_steps.c.position
    where = [workflow_steps.c.revision > since, position.between(positions[0], positions[-1])]
    return [step_from(row) for row in tx.execute(_of_run(workflow_steps, run, workflow_steps.columns, where))]


def _of_run(
    table: Any, run: RunRef, columns: Iterable[Any], where: Sequence[Any], *, descending: bool = False
) -> Select[Any]:
    position = table.c.position
    mine = [table.c.task_id == run.task_id, table.c.run_number == run.run_number]
    return select(*columns).where(*mine, *where).order_by(position.desc() if descending else position)


def _octets(tx: Tx, table: Any) -> Any:
    """How many bytes a step or an event brings that users have made."""
    brought = ("result", "payload", "error_message", "error_details", "trace")
    return dialect.octets(dialect.product(tx), [table.c[name] for name in brought if name in table.c])
