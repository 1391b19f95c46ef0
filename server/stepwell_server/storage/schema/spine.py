"""Tables of the spine: tasks, their handlers, the sessions that hold them, and the counters and clocks behind."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from stepwell_server.storage.schema.metadata import metadata, name

# Addressees of work: the names that are in use or remembered, so that the next wake is found name by name.
handlers = Table(
    "handlers",
    metadata,
    Column("namespace", name(), primary_key=True),
    Column("kind", name(), primary_key=True),
    Column("name", name(), primary_key=True),
    Column("concurrency", Integer),  # most tasks held at once, over all replicas; NULL: no limit
    Column("is_paused", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("registered_at", BigInteger),  # when a worker first said that it hosts it; NULL: none ever did
    Column("description", Text, nullable=False, server_default=""),
    Column("used_at", BigInteger, nullable=False, server_default="0"),  # last hosted or addressed: up to a day late
    Column("has_target", Boolean, nullable=False, server_default=false()),  # the server itself takes its tasks to one
    Column("is_listener", Boolean, nullable=False, server_default=false()),  # it is told of events
    Column("definition", Text),  # what is in force of `declarations`; NULL: only older servers registered it
    Column("definition_hash", Text),
    Index(
        "ix_handlers__listeners",
        *("namespace", "kind", "name"),
        postgresql_where=text("is_listener"),
        sqlite_where=text("is_listener = 1"),
    ),
)

# Every definition that a handler ever had. Which of them is in force, its row in `handlers` says.
declarations = Table(
    "declarations",
    metadata,
    Column("namespace", name(), primary_key=True),
    Column("kind", name(), primary_key=True),
    Column("name", name(), primary_key=True),
    Column("hash", Text, primary_key=True),
    Column("definition", Text, nullable=False),
    Column("first_seen", BigInteger, nullable=False),  # a number of the fences' sequence, as is `put`
    Column("put", BigInteger),  # when it was last put; NULL: only workers have declared it
)

# Everything that waits. The row of a task has everything that a hot write must know of it.
tasks = Table(
    "tasks",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("namespace", name(), nullable=False),
    Column("kind", name(), nullable=False),
    Column("name", name(), nullable=False),
    Column("key", name(), nullable=False),
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
    Column("step_count", Integer, nullable=False, server_default="0"),
    Column("pending_events", Integer, nullable=False, server_default="0"),
    Column("sticky_session", Text),  # who keeps the run in memory
    Column("cached_revision", BigInteger, nullable=False, server_default="0"),
    Column("claimed_at", BigInteger),
    Column("resolved_revision", BigInteger, nullable=False, server_default="0"),
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
    sqlite_autoincrement=True,
)

# Processes that host handlers: those with a stream, for as long as it is there, and those that call.
sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("namespace", name(), nullable=False),
    Column("worker_id", name(), nullable=False),
    Column("sdk", Text, nullable=False),
    Column("replica_id", Text, nullable=False),  # whom its stream is with; empty: it has none
    Column("connection", BigInteger, nullable=False),  # number of its newest connection
    Column("handlers", Text, nullable=False),  # [[kind, name, hash], ...]; of older servers [[kind, name], ...]
    Column("connected_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),  # by lease_now()
    Column("left_at", BigInteger),  # by lease_now(): when its stream ended; NULL: it has not
    Index("ix_sessions__namespace_worker_id", "namespace", "worker_id", "session_id"),
)

# One row: when leases could last be renewed. A lease expires only while renewals are possible.
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
