"""Rows of namespaces."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, select, update

from stepwell_server.domain.namespaces import Namespace, NamespaceLimits, NamespaceSpec, Retention
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.namespaces import namespaces


def insert(tx: Tx, spec: NamespaceSpec) -> Namespace | None:
    """Store a new namespace. None: the name is taken."""
    now = tx.execute(select(db_now())).scalar_one()
    row = {"name": spec.name, "created_at": now, "updated_at": now, **_columns(spec)}
    statement = (
        dialect.insert(dialect.product(tx), namespaces).values(row).on_conflict_do_nothing().returning(namespaces)
    )
    stored = tx.execute(statement).first()
    return None if stored is None else _namespace(stored)


def get(tx: Tx, name: str) -> Namespace | None:
    """The namespace. None: there is none."""
    row = tx.execute(select(namespaces).where(namespaces.c.name == name)).first()
    return None if row is None else _namespace(row)


def lock(tx: Tx, name: str) -> Namespace | None:
    """The namespace, held until the transaction ends. None: there is none."""
    row = tx.execute(select(namespaces).where(namespaces.c.name == name).with_for_update()).first()
    return None if row is None else _namespace(row)


def save(tx: Tx, spec: NamespaceSpec) -> Namespace:
    """Store what changed in a namespace that is locked."""
    statement = (
        update(namespaces)
        .where(namespaces.c.name == spec.name)
        .values(updated_at=db_now(), **_columns(spec))
        .returning(namespaces)
    )
    return _namespace(tx.execute(statement).one())


def list_page(tx: Tx, limit: int, after: Position | None) -> list[Namespace]:
    """Up to `limit` namespaces by name, those after the position."""
    statement = select(namespaces).order_by(namespaces.c.name).limit(limit)
    if after is not None:
        statement = statement.where(beyond([namespaces.c.name], after))
    return [_namespace(row) for row in tx.execute(statement)]


def _columns(spec: NamespaceSpec) -> dict[str, Any]:
    return {
        "description": spec.description,
        "retention_complete": spec.retention.complete,
        "retention_errored": spec.retention.errored,
        "retention_terminated": spec.retention.terminated,
        "max_payload_bytes": spec.limits.max_payload_bytes,
        "max_steps_per_run": spec.limits.max_steps_per_run,
        "max_pending_events": spec.limits.max_pending_events,
    }


def _namespace(row: Row[Any]) -> Namespace:
    spec = NamespaceSpec(
        name=row.name,
        description=row.description,
        retention=Retention(row.retention_complete, row.retention_errored, row.retention_terminated),
        limits=NamespaceLimits(row.max_payload_bytes, row.max_steps_per_run, row.max_pending_events),
    )
    return Namespace(spec, created_at=row.created_at, updated_at=row.updated_at)
