"""All tables. Times are epoch microseconds in BIGINT; user data is text or bytes, never jsonb.

A change here needs a migration in `migrations/versions`; `make verify-migrations` compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()


def _name() -> Text:
    """Text that sorts byte by byte on both databases."""
    return Text(collation="C").with_variant(Text(collation="BINARY"), "sqlite")


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
    Column("name", _name(), primary_key=True),
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

# Whom work is addressed to: the names that were ever used, so that the next wake is found name by name.
handlers = Table(
    "handlers",
    metadata,
    Column("namespace", _name(), primary_key=True),
    Column("kind", _name(), primary_key=True),
    Column("name", _name(), primary_key=True),
    Column("concurrency", Integer),  # most tasks held at once, over all replicas; NULL: no limit
    Column("is_paused", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Everything that waits. What a hot write must know of a task stands on its row, so that it needs no other.
tasks = Table(
    "tasks",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("namespace", _name(), nullable=False),
    Column("kind", _name(), nullable=False),
    Column("name", _name(), nullable=False),
    Column("key", _name(), nullable=False),
    Column("run_number", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),  # 0 is the most urgent
    Column("run_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),  # of the last claim; never used twice in a database
    Column("revision", BigInteger, nullable=False),  # grows with every frame that is applied
    Column("frame_number", BigInteger, nullable=False),  # last frame applied under this fence
    Column("stop", Text, nullable=False),
    Column("wake_again", Boolean, nullable=False),  # something came while it was held
    Column("interruptions", Integer, nullable=False),  # holders lost since its last frame, after they had begun
    Column("acked", Boolean, nullable=False),
    Column("open_steps", Text, nullable=False),
    Column("session_id", Text),
    Column("connection", BigInteger),
    Column("locked_until", BigInteger),  # by lease_now(); in no index, so that renewals stay cheap
    Column("payload", Text),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("namespace", "kind", "name", "key", name="uq_tasks__namespace_kind_name_key"),
    Index(
        "ix_tasks__claim",
        *("namespace", "kind", "name", "priority", "run_at", "id"),
        postgresql_where=text("status = 'pending'"),
        sqlite_where=text("status = 'pending'"),
    ),
    Index(
        "ix_tasks__next_wake",
        *("namespace", "kind", "name", "run_at"),
        postgresql_where=text("status = 'pending'"),
        sqlite_where=text("status = 'pending'"),
    ),
    Index(
        "ix_tasks__held",
        *("namespace", "kind", "name"),
        postgresql_where=text("status = 'processing'"),
        sqlite_where=text("status = 'processing'"),
    ),
    sqlite_autoincrement=True,  # else SQLite gives the id of a finished task to the next one
)

# One row: when a lease was last renewed by anybody. Leases lapse only while somebody is able to renew them.
lease_clock = Table(
    "lease_clock",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("last_tick", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="ck_lease_clock__one_row"),
)

# The last fence issued, on SQLite; PostgreSQL has a sequence of the same name.
fence_counter = Table(
    "fence_counter",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="ck_fence_counter__one_row"),
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
