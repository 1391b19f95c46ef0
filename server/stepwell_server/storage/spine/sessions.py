"""Rows of sessions: which processes host handlers, and which connection of each counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FromClause, Row, Text, and_, cast, delete, or_, select, update

from stepwell_server.domain.spine.handlers import Handler, known_handlers
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.values.times import HOUR, MINUTE, SECOND, Micros
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.clock import db_now, lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.paging import Position, beyond
from stepwell_server.storage.schema.spine import sessions, tasks
from stepwell_server.storage.spine.handlers import from_row as handler_from
from stepwell_server.storage.spine.tasks import is_held

STREAM_SEEN: Micros = 20 * SECOND
"""A session with a stream is gone if its replica has not confirmed it for so long."""
CALLER_SEEN: Micros = HOUR
"""A session without a stream is gone if it has not called for so long."""
CALLER_SERVES: Micros = MINUTE
"""It is taken to be at work for so long after a call: nobody waits longer than that for a task."""
DEFINES: Micros = MINUTE
"""A session counts for definitions for so long after it was last seen, even if it left: it may be back soon."""


@dataclass(frozen=True, slots=True)
class Session:
    """A process that hosts handlers."""

    session_id: str
    namespace: str
    worker_id: str
    sdk: str
    replica_id: str
    """Whom its stream is with. Empty: it has none."""
    handlers: Mapping[Handler, str]
    """The handlers that it hosts, and the hash of each definition. An older server stored no hash: then it is empty."""
    connection: int = 0
    connected_at: Micros = 0


def connect(tx: Tx, session: Session) -> int:
    """Store a session that said hello, and return the number of its new connection, which supersedes earlier ones."""
    row = {
        "session_id": session.session_id,
        "namespace": session.namespace,
        "worker_id": session.worker_id,
        "sdk": session.sdk,
        "replica_id": session.replica_id,
        "connection": 1,
        "handlers": json.dumps([[one.kind, one.name, hash_] for one, hash_ in session.handlers.items()]),
        "connected_at": db_now(),
        "seen_at": lease_now(),
        "left_at": None,
    }
    statement = dialect.insert(dialect.product(tx), sessions).values(row)
    changed = {name: statement.excluded[name] for name in row if name not in ("session_id", "connection")}
    upsert = statement.on_conflict_do_update(
        index_elements=["session_id"], set_=changed | {"connection": sessions.c.connection + 1}
    ).returning(sessions.c.connection)
    return int(tx.execute(upsert).scalar_one())


def get(tx: Tx, session_id: str) -> Session | None:
    """The session, if it is alive."""
    row = tx.execute(select(sessions).where(sessions.c.session_id == session_id, _alive())).first()
    return None if row is None else _session(row)


def disconnect(tx: Tx, owner: Owner) -> None:
    """Count a session whose stream ended as gone, unless it has a newer one. Its number goes on when it comes back."""
    mine = and_(sessions.c.session_id == owner.session_id, sessions.c.connection == owner.connection)
    tx.execute(update(sessions).where(mine).values(left_at=lease_now()))


def confirm(tx: Tx, owners: Sequence[Owner]) -> set[str]:
    """Say that these streams are there. Returns the sessions of those that no newer connection has superseded."""
    there = dialect.as_rows({"session_id": one.session_id, "connection": one.connection} for one in owners)
    return set(tx.execute(_confirm_sql(dialect.product(tx)), {"there": there}).scalars())


@cache
def _confirm_sql(product: str) -> Any:
    there = dialect.rows(product, "there", session_id=Text(), connection=BigInteger())
    mine = [
        dialect.among(product, sessions.c.session_id, there.c.session_id),
        dialect.among(product, _connection(sessions), _connection(there)),
    ]
    return update(sessions).where(*mine).values(seen_at=lease_now()).returning(sessions.c.session_id)


def _connection(of: FromClause) -> ColumnElement[str]:
    return of.c.session_id.concat(cast(of.c.connection, Text()))


def delete_gone(tx: Tx) -> None:
    """Delete sessions that are long gone. Their rows outlive them a little, so that a late return is recognised."""
    tx.execute(delete(sessions).where(sessions.c.seen_at < lease_now() - 2 * CALLER_SEEN))


def list_page(tx: Tx, namespace: str, limit: int, after: Position | None) -> list[Session]:
    """Up to `limit` living sessions of a namespace by the worker's name, those after the position."""
    order = [sessions.c.worker_id, sessions.c.session_id]
    statement = select(sessions).where(sessions.c.namespace == namespace, _alive()).order_by(*order).limit(limit)
    if after is not None:
        statement = statement.where(beyond(order, after))
    return [_session(row) for row in tx.execute(statement)]


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A task that a session holds."""

    session_id: str
    handler: Handler
    key: str
    claimed_at: Micros


def held_by(tx: Tx, session_ids: Iterable[str]) -> list[HeldRow]:
    """What these sessions hold, the oldest first."""
    mine = tasks.c.session_id.in_(list(session_ids))
    found = tx.execute(select(tasks).where(*is_held(), mine).order_by(tasks.c.claimed_at, tasks.c.id))
    return [HeldRow(row.session_id, handler_from(row), row.key, row.claimed_at or row.run_at) for row in found]


def count_by_handler(tx: Tx, namespace: str) -> dict[Handler, int]:
    """How many living sessions host each handler."""
    counts: dict[Handler, int] = {}
    for row in tx.execute(select(sessions).where(sessions.c.namespace == namespace, _alive())):
        for handler in _session(row).handlers:
            counts[handler] = counts.get(handler, 0) + 1
    return counts


def served(tx: Tx, namespace: str | None = None) -> set[Handler]:
    """Whom workers host that are connected, or called a moment ago; in this namespace, or in all."""
    mine = [] if namespace is None else [sessions.c.namespace == namespace]
    found = tx.execute(select(sessions).where(*mine, _alive(CALLER_SERVES)))
    return {handler for row in found for handler in _session(row).handlers}


def is_there(session_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a session is connected, or called a moment ago: looked up for each row that has its id."""
    mine = [sessions.c.session_id == session_id, _alive(CALLER_SERVES)]
    return select(sessions.c.session_id).where(*mine).exists()


@dataclass(frozen=True, slots=True)
class Seen:
    """The handlers of sessions that were seen a moment ago."""

    served: set[Handler] = field(default_factory=set)
    """Handlers of workers that are connected, or called a moment ago."""
    hosted: dict[Handler, set[str]] = field(default_factory=dict)
    """By handler the hashes of its definitions, also of workers that have just left."""


def seen(tx: Tx) -> Seen:
    """Read the handlers of sessions that were seen a moment ago."""
    serves = _alive(CALLER_SERVES).label("serves")
    recent = sessions.c.seen_at > lease_now() - DEFINES
    found = Seen()
    for row in tx.execute(select(sessions.c.namespace, sessions.c.handlers, serves).where(recent)):
        for handler, hash_ in _handlers(row.namespace, row.handlers).items():
            if row.serves:
                found.served.add(handler)
            if hash_:
                found.hosted.setdefault(handler, set()).add(hash_)
    return found


def hosted(tx: Tx) -> set[Handler]:
    """Whom workers host that are there, or were until some hours ago."""
    found = tx.execute(select(sessions.c.namespace, sessions.c.handlers).distinct())
    return {handler for row in found for handler in _handlers(*row)}


def _alive(caller_seen: Micros | None = None) -> Any:
    caller_seen = CALLER_SEEN if caller_seen is None else caller_seen
    is_back = sessions.c.seen_at > sessions.c.left_at  # by an older server, which does not write when a session left
    by_stream = and_(sessions.c.replica_id != "", sessions.c.seen_at > lease_now() - STREAM_SEEN)
    by_call = and_(sessions.c.replica_id == "", sessions.c.seen_at > lease_now() - caller_seen)
    return and_(or_(sessions.c.left_at.is_(None), is_back), or_(by_stream, by_call))


def _session(row: Row[Any]) -> Session:
    return Session(
        session_id=row.session_id,
        namespace=row.namespace,
        worker_id=row.worker_id,
        sdk=row.sdk,
        replica_id=row.replica_id,
        handlers=_handlers(row.namespace, row.handlers),
        connection=row.connection,
        connected_at=row.connected_at,
    )


def _handlers(namespace: str, stored: str) -> dict[Handler, str]:
    hashes = {(kind, name): "".join(hash_) for kind, name, *hash_ in json.loads(stored)}
    known = known_handlers((namespace, kind, name) for kind, name in hashes)
    return {handler: hashes[handler.kind, handler.name] for handler in known}
