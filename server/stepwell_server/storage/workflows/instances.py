"""Rows of workflow instances. Whoever changes the row of a live one has its task locked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Row,
    Select,
    Text,
    bindparam,
    case,
    func,
    select,
    true,
    update,
)
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.spine.births import Birth, Found
from stepwell_server.domain.spine.tasks import Task, TaskStatus
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.traces import Trace
from stepwell_server.domain.workflows.instances import Head, Instance, InstanceKey, InstanceStatus, NewInstance
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import LostRace, Tx
from stepwell_server.storage.database.payloads import (
    FAILURE,
    failure_from,
    failure_row,
    from_text,
    to_text,
    trace_from,
    trace_to_text,
)
from stepwell_server.storage.database.statements import Write, write
from stepwell_server.storage.schema.workflows import workflow_instances, workflow_labels
from stepwell_server.storage.spine import tasks as task_store

_STARTED = [workflow_instances.c[name] for name in ("id", "params", "created_at", "trace")]
_KEY: dict[str, TypeEngine[Any]] = {"namespace": Text(), "workflow": Text(), "instance_id": Text()}


@dataclass(frozen=True, slots=True)
class End:
    """How an instance ends."""

    id: int
    status: InstanceStatus
    at: Micros
    revision: int
    output: Payload | None = None
    failure: Failure | None = None
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """What a worker must know of an instance besides its steps."""

    params: Payload
    created_at: Micros
    trace: Trace


KEPT = workflow_instances
"""Table of the rows that stay when tasks of instances end."""


# ---- write


def insert(tx: Tx, births: Sequence[Birth[NewInstance]]) -> set[int]:
    """Store new instances, in the order of their keys, and return the numbers of those that were not there yet."""
    columns = {column.name: column.type for column in workflow_instances.columns}
    fresh = dialect.with_payloads("fresh", map(_birth_row, births))
    stored = set(tx.execute(_insert_sql(dialect.product(tx), tuple(columns)), fresh).scalars())
    labels = [row for one in births if one.id in stored for row in _label_rows(one)]
    if labels:
        tx.execute(_insert_labels_sql(dialect.product(tx)), {"fresh": dialect.as_rows(labels)})
    return stored


@cache
def _insert_sql(product: str, names: tuple[str, ...]) -> Any:
    fresh = dialect.rows(product, "fresh", **{name: workflow_instances.c[name].type for name in names})
    source = select(*(fresh.c[name] for name in names)).where(true()).order_by(*(fresh.c[name] for name in _KEY))
    statement = dialect.insert(product, workflow_instances).from_select(list(names), source)
    return statement.on_conflict_do_nothing().returning(workflow_instances.c.id)


@cache
def _insert_labels_sql(product: str) -> Any:
    names = [column.name for column in workflow_labels.columns]
    fresh = dialect.rows(product, "fresh", **{name: workflow_labels.c[name].type for name in names})
    source = select(*(fresh.c[name] for name in names)).where(true())
    return dialect.insert(product, workflow_labels).from_select(names, source)


def copy_status(tx: Tx, statuses: Mapping[int, InstanceStatus], at: Micros) -> None:
    """Write what the tasks of live instances say."""
    write(tx, [copying_status(statuses, at)])


def copying_status(statuses: Mapping[int, InstanceStatus], at: Micros) -> Write:
    """The statement of `copy_status`."""
    rows = dialect.as_rows({"id": one, "status": status, "at": at} for one, status in statuses.items())
    return Write(_copy_sql, {"statuses_after": rows})


@cache
def _copy_sql(product: str) -> Any:
    after = dialect.rows(product, "statuses_after", id=BigInteger(), status=Text(), at=BigInteger())
    statement, new = dialect.overwrite(product, workflow_instances, after, "id")
    return statement.values(status=new.status, updated_at=new.at)


def start(tx: Tx, ids: Iterable[int], at: Micros) -> dict[int, Started]:
    """Write that workers run these instances now, and return what they must know."""
    rows = dialect.as_rows({"id": one, "at": at} for one in ids)
    found = tx.execute(_start_sql(dialect.product(tx)), {"after": rows})
    return {row.id: _started(row) for row in found}


@cache
def _start_sql(product: str) -> Any:
    after = dialect.rows(product, "after", id=BigInteger(), at=BigInteger())
    statement, new = dialect.overwrite(product, workflow_instances, after, "id")
    started_at = func.coalesce(workflow_instances.c.started_at, new.at)
    started = statement.values(status=InstanceStatus.RUNNING, updated_at=new.at, started_at=started_at)
    return started.returning(*_STARTED)


def known(tx: Tx, ids: Iterable[int]) -> dict[int, Started]:
    """What workers must know of these instances."""
    found = tx.execute(_known_sql(dialect.product(tx)), {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {row.id: _started(row) for row in found}


@cache
def _known_sql(product: str) -> Select[Any]:
    return select(*_STARTED).where(_is_wanted(product))


def _started(row: Row[Any]) -> Started:
    return Started(from_text(row.params) or Payload(), row.created_at, trace_from(row))


def ending(ends: Iterable[End]) -> Write:
    """Writes how instances ended."""
    return Write(_end_sql, dialect.with_payloads("ends", map(_end_row, ends)))


@cache
def _end_sql(product: str) -> Any:
    names = ("status", "output", *FAILURE, "revision", "ended_fence")
    types = {name: workflow_instances.c[name].type for name in names}
    after = dialect.rows(product, "ends", id=BigInteger(), at=BigInteger(), **types)
    statement, new = dialect.overwrite(product, workflow_instances, after, "id")
    return statement.values(**{name: new[name] for name in names}, ended_at=new.at, updated_at=new.at)


def restart(tx: Tx, instance: Instance, at: Micros, fence: int) -> None:
    """Write that the next run of an instance is queued. Fences below this one are of earlier runs from now on."""
    fresh = {"output": None, "started_at": None, "ended_at": None, "ended_fence": None, **failure_row(None)}
    tx.execute(
        update(workflow_instances)
        .where(workflow_instances.c.id == instance.id)
        .values(
            **fresh,
            run_number=instance.run_number + 1,
            status=InstanceStatus.QUEUED,
            updated_at=at,
            first_fence=fence,
        )
    )


# ---- read


def find(tx: Tx, births: Iterable[Birth[NewInstance]]) -> list[Found[Instance]]:
    """Instances that have the key or the request id of one of these."""
    wanted = dialect.as_rows(_key_row(one.new.key) | {"request_id": one.wanted.request_id} for one in births)
    product = dialect.product(tx)
    found = {}
    for statement in (_same_key_sql(product), _same_request_sql(product)):
        for row in tx.execute(statement, {"wanted": wanted}):
            found[row.id] = Found(from_row(row), row.request_id, row.request_hash)
    return list(found.values())


@cache
def _same_key_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY, request_id=Text())
    return _found_sql(product, wanted, *_same_key(wanted.c))


@cache
def _same_request_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY, request_id=Text())
    same = [
        workflow_instances.c.request_id == wanted.c.request_id,
        dialect.unindexed(workflow_instances.c.namespace) == wanted.c.namespace,
    ]
    return _found_sql(product, wanted, *same, workflow_instances.c.request_id.is_not(None))


def _found_sql(product: str, wanted: FromClause, *same: Any) -> Select[Any]:
    joined, mine = dialect.look_up(product, wanted, workflow_instances, *same)
    return with_task(product, mine, joined).add_columns(mine.c.request_id, mine.c.request_hash)


def get(tx: Tx, key: InstanceKey) -> Instance | None:
    """The instance as it is now. None: there is none."""
    row = tx.execute(_one_sql(dialect.product(tx)), _key_row(key)).first()
    return None if row is None else from_row(row)


@cache
def _one_sql(product: str) -> Select[Any]:
    given = SimpleNamespace(**{name: bindparam(name, type_=type_) for name, type_ in _KEY.items()})
    return with_task(product, workflow_instances).where(*_same_key(given))


def get_many(tx: Tx, ids: Iterable[int]) -> dict[int, Instance]:
    """These instances as they are now, by their numbers."""
    found = tx.execute(_many_sql(dialect.product(tx)), {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {row.id: from_row(row) for row in found}


@cache
def _many_sql(product: str) -> Select[Any]:
    return with_task(product, workflow_instances).where(_is_wanted(product))


def _is_wanted(product: str) -> ColumnElement[bool]:
    return dialect.among(product, workflow_instances.c.id, dialect.rows(product, "wanted", id=BigInteger()).c.id)


def get_keys(tx: Tx, keys: Iterable[InstanceKey]) -> list[Instance]:
    """Those of these instances that exist, without their payloads."""
    wanted = dialect.as_rows(map(_key_row, keys))
    return [from_row(row) for row in tx.execute(_keys_sql(dialect.product(tx)), {"wanted": wanted})]


@cache
def _keys_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY)
    joined, mine = dialect.look_up(product, wanted, workflow_instances, *_same_key(wanted.c))
    return with_task(product, mine, joined, payloads=False)


def heads(tx: Tx, ids: Iterable[int]) -> dict[int, Head]:
    """Where these instances stand, without anything that users have made."""
    found = tx.execute(_heads_sql(dialect.product(tx)), {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {row.id: Head(row.id, row.revision, InstanceStatus(row.status)) for row in found}


@cache
def _heads_sql(product: str) -> Select[Any]:
    joined, task = task_store.with_task(product, workflow_instances)
    columns = [workflow_instances.c.id, _revision(workflow_instances, task), workflow_instances.c.status]
    return select(*columns).select_from(joined).where(_is_wanted(product))


def sizes(tx: Tx, ids: Iterable[int]) -> dict[int, int]:
    """How many bytes these instances have."""
    found = tx.execute(_sizes_sql(dialect.product(tx)), {"wanted": dialect.as_rows({"id": one} for one in ids)})
    return {row.id: row.octets for row in found}


@cache
def _sizes_sql(product: str) -> Select[Any]:
    size = instance_octets(product, workflow_instances, payloads=True)
    return select(workflow_instances.c.id, size).where(_is_wanted(product))


def lock(tx: Tx, key: InstanceKey) -> tuple[Instance, Task | None] | None:
    """The instance and its task, nobody else's until the transaction ends. None: there is no such instance.

    The task is locked first, as everybody does who changes a live instance. An instance that ended or was restarted
    between the two is looked at again from the beginning.
    """
    seen = get(tx, key)
    if seen is None:
        return None
    task = task_store.lock(tx, [seen.id], waiting=True).get(seen.id)
    tx.execute(select(workflow_instances.c.id).where(*_same_key(key)).with_for_update(key_share=True))
    instance = get(tx, key)
    assert instance is not None
    if instance.status.ended is (task is not None):
        raise LostRace
    return instance, task


def refer_to(handler: Any) -> list[ColumnElement[bool]]:
    """Which instances are of a workflow, given the columns that name it."""
    return [workflow_instances.c.namespace == handler.namespace, workflow_instances.c.workflow == handler.name]


# ---- rows


def with_task(
    product: str, mine: FromClause, joined: FromClause | None = None, *, payloads: bool = True
) -> Select[Any]:
    """Instances with what their tasks say; without their payloads if those are not wanted.

    They are selected of `mine`, which may be part of a join.
    """
    left_out = {"request_id", "request_hash", "first_fence", "ended_fence", "revision"}
    left_out |= set() if payloads else {"params", "output", "trace"}
    columns = [column for column in mine.c if column.name not in left_out]
    whole, task = task_store.with_task(product, mine, joined)
    waits = case((task.c.status == TaskStatus.PENDING, task.c.run_at), else_=None)
    return select(*columns, _revision(mine, task), waits.label("run_at")).select_from(whole)


def instance_octets(product: str, mine: FromClause, *, payloads: bool) -> Any:
    """How many bytes an instance brings that users have made; without its payloads if those are not wanted."""
    brought = ("labels", "error_message", "error_details", "trace", *(("params", "output") if payloads else ()))
    return dialect.octets(product, [mine.c[name] for name in brought])


def _revision(mine: FromClause, task: FromClause) -> ColumnElement[int]:
    return func.coalesce(task.c.revision, mine.c.revision).label("revision")


def _same_key(other: Any) -> list[Any]:
    """Whether an instance has this key. Only its id is looked up by an index: those of listings begin alike."""
    mine = workflow_instances.c
    return [
        mine.instance_id == other.instance_id,
        dialect.unindexed(mine.namespace) == other.namespace,
        dialect.unindexed(mine.workflow) == other.workflow,
    ]


def _key_row(key: InstanceKey) -> dict[str, Any]:
    return {"namespace": key.namespace, "workflow": key.workflow, "instance_id": key.instance_id}


def _birth_row(birth: Birth[NewInstance]) -> dict[str, Any]:
    status = InstanceStatus.QUEUED if birth.lease is None else InstanceStatus.RUNNING
    return _key_row(birth.new.key) | {
        "id": birth.id,
        "run_number": 0,
        "status": status,
        "params": to_text(birth.new.params),
        "labels": json.dumps(dict(birth.new.labels), separators=(",", ":")),
        "created_at": birth.at,
        "updated_at": birth.at,
        "started_at": None if birth.lease is None else birth.at,
        "revision": 0,
        "first_fence": 0,
        "request_id": birth.wanted.request_id,
        "request_hash": birth.wanted.request_hash,
        "trace": trace_to_text(birth.new.trace),
    }


def _label_rows(birth: Birth[NewInstance]) -> list[dict[str, Any]]:
    key = birth.new.key
    return [
        {
            "namespace": key.namespace,
            "workflow": key.workflow,
            "name": name,
            "value": value,
            "created_at": birth.at,
            "id": birth.id,
        }
        for name, value in birth.new.labels.items()
    ]


def _end_row(one: End) -> dict[str, Any]:
    return {
        "id": one.id,
        "status": one.status,
        "at": one.at,
        "revision": one.revision,
        "ended_fence": one.fence,
        "output": to_text(one.output),
        **failure_row(one.failure),
    }


def from_row(row: Row[Any]) -> Instance:
    """An instance from a row of `with_task`."""
    status = InstanceStatus(row.status)
    return Instance(
        id=row.id,
        key=InstanceKey(row.namespace, row.workflow, row.instance_id),
        run_number=row.run_number,
        status=status,
        params=from_text(getattr(row, "params", None)),
        output=from_text(getattr(row, "output", None)),
        failure=failure_from(row),
        labels=json.loads(row.labels),
        created_at=row.created_at,
        updated_at=row.updated_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        revision=row.revision,
        wake_at=row.run_at if status is InstanceStatus.WAITING else None,
        trace=trace_from(row),
    )
