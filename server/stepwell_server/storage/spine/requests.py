"""Replies by request_id: a mutating call that is repeated is answered, and not executed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import LargeBinary, Row, Select, Text, and_, delete, func, select, true, update
from sqlalchemy.types import TypeEngine

from stepwell_server.domain.values.asked import Asked, RequestKey, reused
from stepwell_server.domain.values.times import DAY
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.spine import requests

T = TypeVar("T")

KEPT = DAY

_KEY: dict[str, TypeEngine[Any]] = {name: Text() for name in ("namespace", "principal", "method", "request_id")}


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


# ---- of many requests at once


def known(tx: Tx, asked: Collection[RequestKey]) -> dict[RequestKey, tuple[bytes, Any]]:
    """Of those of these requests that were answered before, the hash of what they asked for, and the stored reply."""
    rows = tx.execute(_known_sql(dialect.product(tx)), {"wanted": dialect.as_rows(map(_key_row, asked))})
    return {_key(row): (bytes(row.body_hash), json.loads(row.reply)) for row in rows}


@cache
def _known_sql(product: str) -> Select[Any]:
    wanted = dialect.rows(product, "wanted", **_KEY)
    same = and_(*(requests.c[name] == wanted.c[name] for name in _KEY))
    joined, mine = dialect.look_up(product, wanted, requests, same, requests.c.created_at > lease_now() - KEPT)
    return select(*(mine.c[name] for name in _KEY), mine.c.body_hash, mine.c.reply).select_from(joined)


def store(tx: Tx, replies: Mapping[RequestKey, Any]) -> set[RequestKey]:
    """Store replies, and return the requests that another transaction has answered since they were looked up.

    It waits for a transaction that answers one of them at this moment.
    """
    rows = [
        _key_row(key) | {"body_hash": key.body_hash, "reply": json.dumps(reply).encode()}
        for key, reply in replies.items()
    ]
    stored = tx.execute(_store_sql(dialect.product(tx)), dialect.with_payloads("fresh", rows))
    return replies.keys() - {_key(row) for row in stored}


@cache
def _store_sql(product: str) -> Any:
    columns: dict[str, TypeEngine[Any]] = {**_KEY, "body_hash": LargeBinary(), "reply": Text()}
    fresh = dialect.rows(product, "fresh", **columns)
    source = select(*(fresh.c[name] for name in columns), lease_now()).where(true())
    in_order = source.order_by(*(fresh.c[name] for name in _KEY))  # of all replicas: an insert waits
    names = [*columns, "created_at"]
    statement = dialect.insert(product, requests).from_select(names, in_order)
    return statement.on_conflict_do_update(
        index_elements=[*_KEY],
        set_={name: statement.excluded[name] for name in ("body_hash", "reply", "created_at")},
        where=requests.c.created_at <= statement.excluded.created_at - KEPT,
    ).returning(*(requests.c[name] for name in _KEY))


def _key_row(key: RequestKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in _KEY}


def _key(row: Row[Any]) -> RequestKey:
    return RequestKey(row.namespace, row.principal, row.method, row.request_id)


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
        raise reused(asked.request_id)
    return str(row.reply)


def _same(namespace: str, asked: Asked) -> list[Any]:
    return [
        requests.c.namespace == namespace,
        requests.c.principal == asked.principal,
        requests.c.method == asked.method,
        requests.c.request_id == asked.request_id,
    ]
