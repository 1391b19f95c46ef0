"""Replies by request_id: a mutating call that is repeated is answered, and not executed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import delete, func, select, update

from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import IdempotencyKeyReused
from stepwell_server.domain.values.times import DAY
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import requests

T = TypeVar("T")

KEPT = DAY


def once(
    tx: Tx,
    namespace: str,
    asked: Asked,
    work: Callable[[], T],
    *,
    dump: Callable[[T], Any],
    load: Callable[[Any], T],
) -> T:
    """Do the work and store its reply, or return the reply that an earlier call of this request stored.

    The row is inserted first: a second call that is in flight waits there for the first one and then sees its reply. A
    refusal raised by the work takes the row back with the transaction, so only accepted requests are remembered.
    """
    if not asked.request_id:
        return work()
    if not _reserve(tx, namespace, asked):
        return load(json.loads(_stored_reply(tx, namespace, asked)))
    result = work()
    tx.execute(update(requests).where(*_same(namespace, asked)).values(reply=json.dumps(dump(result))))
    return result


def recall(tx: Tx, namespace: str, asked: Asked) -> Any:
    """The reply that an earlier call of this request stored. None: there is none."""
    if not asked.request_id or tx.execute(select(requests.c.reply).where(*_same(namespace, asked))).first() is None:
        return None
    return json.loads(_stored_reply(tx, namespace, asked))


def remember(tx: Tx, namespace: str, asked: Asked, reply: Any) -> None:
    """Store a reply whose effect is committed already: for calls that may be done twice without harm."""
    if asked.request_id and _reserve(tx, namespace, asked):
        tx.execute(update(requests).where(*_same(namespace, asked)).values(reply=json.dumps(reply)))


def delete_expired(tx: Tx, limit: int) -> int:
    """Delete up to `limit` replies that are no longer honoured, and say how many it were."""
    old = select(requests.c.created_at).where(requests.c.created_at <= lease_now() - KEPT)
    newest = old.order_by(requests.c.created_at).limit(limit).subquery()
    last = select(func.max(newest.c.created_at)).scalar_subquery()
    return tx.execute(delete(requests).where(requests.c.created_at <= last)).rowcount


def _reserve(tx: Tx, namespace: str, asked: Asked) -> bool:
    """Insert the row of the request. False: there is one already."""
    tx.execute(delete(requests).where(*_same(namespace, asked), requests.c.created_at <= lease_now() - KEPT))
    row = {
        "namespace": namespace,
        "principal": asked.principal,
        "method": asked.method,
        "request_id": asked.request_id,
        "body_hash": asked.body_hash,
        "reply": "",
        "created_at": lease_now(),
    }
    reserve = (
        dialect.insert(dialect.product(tx), requests)
        .values(row)
        .on_conflict_do_nothing()
        .returning(requests.c.request_id)
    )
    return tx.execute(reserve).first() is not None


def _stored_reply(tx: Tx, namespace: str, asked: Asked) -> str:
    row = tx.execute(select(requests.c.body_hash, requests.c.reply).where(*_same(namespace, asked))).one()
    if bytes(row.body_hash) != asked.body_hash:
        raise IdempotencyKeyReused("this request_id was used for another request", request_id=asked.request_id)
    return str(row.reply)


def _same(namespace: str, asked: Asked) -> list[Any]:
    return [
        requests.c.namespace == namespace,
        requests.c.principal == asked.principal,
        requests.c.method == asked.method,
        requests.c.request_id == asked.request_id,
    ]
