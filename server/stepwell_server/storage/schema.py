"""All tables. Times are epoch microseconds in BIGINT; user data is text or bytes, never jsonb.

A change here needs a migration in `migrations/versions`; `make verify-migrations` compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

metadata = MetaData()

# One row. virtual_now is NULL on a database with a real clock; which of the two it is, is fixed at its creation.
clock = Table(
    "clock",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("virtual_now", BigInteger),
    CheckConstraint("id = 1", name="ck_clock__one_row"),
)

# One row: what makes this database itself and no other.
deployment = Table(
    "deployment",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("database_id", Text, nullable=False),
    Column("page_token_key", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="ck_deployment__one_row"),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text(collation="C").with_variant(Text(collation="BINARY"), "sqlite"), primary_key=True),
    Column("description", Text, nullable=False),
    Column("retention_complete", BigInteger),
    Column("retention_errored", BigInteger),
    Column("retention_terminated", BigInteger),
    Column("max_payload_bytes", BigInteger, nullable=False),
    Column("max_steps_per_run", Integer, nullable=False),
    Column("max_pending_events", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# Replies of mutating calls, by the caller's request_id, so that a repeated call is answered and not executed again.
requests = Table(
    "requests",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("principal", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("body_hash", LargeBinary, nullable=False),
    Column("reply", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("ix_requests__created_at", "created_at"),
)
