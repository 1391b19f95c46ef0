"""The identity of a database: the row written when it was created, and its versions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import insert, select, text

from stepwell_server.domain.namespaces import DEFAULT_NAMESPACE, NamespaceSpec
from stepwell_server.storage import namespaces
from stepwell_server.storage.database import clock as clocks
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema.deployment import clock, deployment


class ClockModeMismatch(Exception):
    """The database was created with another kind of clock than the server was started with."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The identity of a database, the same for every server on it."""

    database_id: str
    page_token_key: bytes
    virtual_clock: bool
    database_kind: str
    database_version: str
    schema_version: str


def create(tx: Tx, *, virtual_clock: bool) -> None:
    """Give a new database its identity, its clock and its first namespace; leave an existing one as it is."""
    if tx.execute(select(deployment.c.id)).first() is not None:
        return
    now = tx.execute(select(clocks.lease_now())).scalar_one()
    tx.execute(insert(clock).values(id=1, virtual_now=now if virtual_clock else None))
    tx.execute(
        insert(deployment).values(
            id=1, database_id=secrets.token_hex(8), page_token_key=secrets.token_bytes(32), created_at=now
        )
    )
    namespaces.insert(tx, NamespaceSpec(DEFAULT_NAMESPACE, description="Where everything lives unless told otherwise."))


def read(tx: Tx) -> Deployment:
    """The identity of this database."""
    row = tx.execute(
        select(deployment, clock.c.virtual_now.is_not(None).label("virtual")).join_from(
            deployment, clock, deployment.c.id == clock.c.id
        )
    ).one()
    return Deployment(
        database_id=row.database_id,
        page_token_key=bytes(row.page_token_key),
        virtual_clock=bool(row.virtual),
        database_kind=dialect.product(tx),
        database_version=dialect.version(tx),
        schema_version=str(tx.execute(text("SELECT version_num FROM alembic_version")).scalar_one()),
    )


def check_clock(found: Deployment, *, virtual_clock: bool) -> None:
    """Refuse to serve a database with the wrong kind of clock: real work must never meet a clock that can be moved."""
    if found.virtual_clock and not virtual_clock:
        raise ClockModeMismatch("this database was created with a virtual clock; start the server with --virtual-clock")
    if virtual_clock and not found.virtual_clock:
        raise ClockModeMismatch("this database was created with a real clock; --virtual-clock needs a new one")
