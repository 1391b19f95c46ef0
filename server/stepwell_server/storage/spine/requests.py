"""Replies by request_id: a mutating call that is repeated is answered, and not executed again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import delete, func, select, update

from stepwell_server.domain.values.errors import IdempotencyKeyReused
from stepwell_server.domain.values.times import DAY
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema import requests

T = TypeVar("T")

KEPT = DAY


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Whose request it was and what it asked. `body` is everything that must be equal in a repetition."""

    namespace: str
    principal: str
    method: str
    request_id: str
    body: bytes

    @property
    def body_hash(self) -> bytes:
        """What is stored of the body: enough to tell a repetition from a reuse."""
        return hashlib.sha256(self.body).digest()


def once(
    tx: Tx,
    key: RequestKey,
    work: Callable[[], T],
    *,
    dump: Callable[[T], Any],
    load: Callable[[Any], T],
) -> T:
    """Do the work and store its reply, or return the reply that an earlier call with this key stored.

    The row is inserted first: a second call that is in flight waits there for the first one and then sees its reply. A
    refusal raised by the work takes the row back with the transaction, so only accepted requests are remembered.
    """
    if not key.request_id:
        return work()
    if not _reserve(tx, key):
        return load(json.loads(_stored_reply(tx, key)))
    result = work()
    tx.execute(update(requests).where(*_same(key)).values(reply=json.dumps(dump(result))))
    return result


def recall(tx: Tx, key: RequestKey) -> Any:
    """The reply that an earlier call with this key stored. None: there is none."""
    if not key.request_id or tx.execute(select(requests.c.reply).where(*_same(key))).first() is None:
        return None
    return json.loads(_stored_reply(tx, key))


def remember(tx: Tx, key: RequestKey, reply: Any) -> None:
    """Store a reply whose effect is committed already: for calls that may be done twice without harm."""
    if key.request_id and _reserve(tx, key):
        tx.execute(update(requests).where(*_same(key)).values(reply=json.dumps(reply)))


def delete_expired(tx: Tx, limit: int) -> int:
    """Delete up to `limit` replies that are no longer honoured, and say how many it were."""
    old = select(requests.c.created_at).where(requests.c.created_at <= lease_now() - KEPT)
    newest = old.order_by(requests.c.created_at).limit(limit).subquery()
    last = select(func.max(newest.c.created_at)).scalar_subquery()
    return tx.execute(delete(requests).where(requests.c.created_at <= last)).rowcount


def _reserve(tx: Tx, key: RequestKey) -> bool:
    """Insert the key's row. False: there is one already."""
    tx.execute(delete(requests).where(*_same(key), requests.c.created_at <= lease_now() - KEPT))
    row = {
        "namespace": key.namespace,
        "principal": key.principal,
        "method": key.method,
        "request_id": key.request_id,
        "body_hash": key.body_hash,
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


def _stored_reply(tx: Tx, key: RequestKey) -> str:
    row = tx.execute(select(requests.c.body_hash, requests.c.reply).where(*_same(key))).one()
    if bytes(row.body_hash) != key.body_hash:
        raise IdempotencyKeyReused("this request_id was used for another request", request_id=key.request_id)
    return str(row.reply)


def _same(key: RequestKey) -> list[Any]:
    return [
        requests.c.namespace == key.namespace,
        requests.c.principal == key.principal,
        requests.c.method == key.method,
        requests.c.request_id == key.request_id,
    ]
