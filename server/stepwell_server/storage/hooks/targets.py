"""Rows of hook targets: which webhook the hooks of a name go to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, delete, select, update

from stepwell_server.domain.hooks.webhooks import Secret, Target, check_secrets
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.hooks import hook_targets
from stepwell_server.storage.spine import handlers, limits

CONCURRENCY = 5
"""Deliveries to one target at a time, over all replicas."""


def handler_of(namespace: str, name: str) -> Handler:
    """The handler whose place the target takes."""
    return Handler(namespace, TaskKind.HOOK, name)


def put(tx: Tx, namespace: str, name: str, url: str, secrets: Sequence[Secret]) -> None:
    """Store a target, or change and enable the one that is there. From now on its hooks are limited."""
    row = {
        "namespace": namespace,
        "name": name,
        "url": url,
        "secrets": json.dumps([one.text for one in secrets]),
        "disabled_reason": "",
        "created_at": db_now(),
        "updated_at": db_now(),
    }
    statement = dialect.insert(dialect.product(tx), hook_targets).values(row)
    changed = {one: statement.excluded[one] for one in ("url", "secrets", "disabled_reason", "updated_at")}
    upsert = statement.on_conflict_do_update(index_elements=["namespace", "name"], set_=changed)
    tx.execute(upsert)
    handlers.note(tx, [handler_of(namespace, name)])
    limits.limit(tx, handler_of(namespace, name), concurrency=CONCURRENCY)
    handlers.target(tx, handler_of(namespace, name), has_target=True)


def disable(tx: Tx, target: Target, reason: str) -> bool:
    """Deliver nothing more to a target until it is put again. False: it is another one by now."""
    same = and_(_mine(target.namespace, target.name), hook_targets.c.updated_at == target.updated_at)
    changed = update(hook_targets).where(same).values(disabled_reason=reason, updated_at=db_now())
    if tx.execute(changed.returning(hook_targets.c.name)).first() is None:
        return False
    limits.limit(tx, handler_of(target.namespace, target.name), concurrency=CONCURRENCY, is_paused=True)
    return True


def remove(tx: Tx, namespace: str, name: str) -> bool:
    """Delete a target. Every worker can take its hooks again. False: there is none."""
    gone = delete(hook_targets).where(_mine(namespace, name)).returning(hook_targets.c.name)
    if tx.execute(gone).first() is None:
        return False
    limits.limit(tx, handler_of(namespace, name), concurrency=None)
    handlers.target(tx, handler_of(namespace, name), has_target=False)
    return True


def get(tx: Tx, namespace: str, name: str) -> Target | None:
    """The target of a name. None: there is none."""
    row = tx.execute(select(hook_targets).where(_mine(namespace, name))).first()
    return None if row is None else _from_row(row)


def enabled(tx: Tx) -> list[Target]:
    """Every target that something can be delivered to."""
    found = tx.execute(select(hook_targets).where(hook_targets.c.disabled_reason == ""))
    return [_from_row(row) for row in found]


def list_page(tx: Tx, namespace: str, limit: int, after: Position | None) -> list[Target]:
    """Up to `limit` targets of a namespace by name, those after the position."""
    order = [hook_targets.c.name]
    statement = select(hook_targets).where(hook_targets.c.namespace == namespace).order_by(*order).limit(limit)
    if after is not None:
        statement = statement.where(beyond(order, after))
    return [_from_row(row) for row in tx.execute(statement)]


def _mine(namespace: str, name: str) -> Any:
    return and_(hook_targets.c.namespace == namespace, hook_targets.c.name == name)


def _from_row(row: Row[Any]) -> Target:
    return Target(
        namespace=row.namespace,
        name=row.name,
        url=row.url,
        secrets=check_secrets(json.loads(row.secrets)),
        created_at=row.created_at,
        updated_at=row.updated_at,
        disabled_reason=row.disabled_reason,
    )
