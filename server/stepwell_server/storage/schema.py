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

# Whom work is addressed to: the names that are in use or remembered, so that the next wake is found name by name.
handlers = Table(
    "handlers",
    metadata,
    Column("namespace", _name(), primary_key=True),
    Column("kind", _name(), primary_key=True),
    Column("name", _name(), primary_key=True),
    Column("concurrency", Integer),  # most tasks held at once, over all replicas; NULL: no limit
    Column("is_paused", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("registered_at", BigInteger),  # when a worker first said that it hosts it; NULL: none ever did
    Column("description", Text, nullable=False, server_default=""),
    Column("used_at", BigInteger, nullable=False, server_default="0"),  # last hosted or addressed: up to a day late
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

# Executions of workflows. An instance has a task, of the same id, exactly as long as it has not ended; whoever changes
# the row of one that lives has that task locked. The status of a live one is a copy of what its task says.
workflow_instances = Table(
    "workflow_instances",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", _name(), nullable=False),
    Column("workflow", _name(), nullable=False),
    Column("instance_id", _name(), nullable=False),
    Column("run_number", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("params", Text, nullable=False),
    Column("output", Text),
    Column("error_name", Text),
    Column("error_message", Text),
    Column("error_details", Text),
    Column("error_non_retryable", Boolean),
    Column("labels", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("revision", BigInteger, nullable=False),  # of one that has ended; while it lives, its task's counts
    Column("first_fence", BigInteger, nullable=False),  # fences below this are of earlier runs
    Column("ended_fence", BigInteger),  # lease under which its worker ended it
    Column("request_id", Text),
    Column("request_hash", Text),
    Column("trace", Text),  # a JSON object, here and below; NULL: none
    UniqueConstraint("instance_id", "namespace", "workflow", name="uq_workflow_instances__key"),
    Index("ix_workflow_instances__created", "namespace", "workflow", "created_at", "id"),
    Index("ix_workflow_instances__status", "namespace", "workflow", "status", "created_at", "id"),
    Index(
        "uq_workflow_instances__request",
        *("request_id", "namespace"),
        unique=True,
        postgresql_where=text("request_id IS NOT NULL"),
        sqlite_where=text("request_id IS NOT NULL"),
    ),
)

workflow_labels = Table(
    "workflow_labels",
    metadata,
    Column("namespace", _name(), primary_key=True),
    Column("workflow", _name(), primary_key=True),
    Column("name", _name(), primary_key=True),
    Column("value", _name(), primary_key=True),
    Column("created_at", BigInteger, primary_key=True),
    Column("id", BigInteger, primary_key=True),
)

# Steps of runs: what they returned, or what they wait for. One whose body is executing stands on its task's row.
workflow_steps = Table(
    "workflow_steps",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("run_number", Integer, primary_key=True, autoincrement=False),
    Column("name", _name(), primary_key=True),
    Column("position", BigInteger, nullable=False),  # revision of the run at which it was first stored
    Column("revision", BigInteger, nullable=False),  # revision of the run at which it last changed
    Column("type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer),  # NULL of a step with a body: no maximum
    Column("retry_delay", BigInteger),
    Column("retry_backoff", Text),
    Column("retry_max_delay", BigInteger),
    Column("timeout", BigInteger),  # NULL: it has no body
    Column("next_retry_at", BigInteger),
    Column("wake_at", BigInteger),
    Column("event_type", Text, nullable=False),
    Column("event_at", BigInteger),
    Column("result", Text),
    Column("error_name", Text),
    Column("error_message", Text),
    Column("error_details", Text),
    Column("error_non_retryable", Boolean),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("trace", Text),  # of the event that it got
    Index("ix_workflow_steps__position", "task_id", "run_number", "position"),
    Index(
        "ix_workflow_steps__waiting",
        *("task_id", "run_number"),
        postgresql_where=text("status = 'waiting'"),
        sqlite_where=text("status = 'waiting'"),
    ),
)

workflow_events = Table(
    "workflow_events",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("run_number", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", _name(), nullable=False),
    Column("type", _name(), nullable=False),
    Column("payload", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("delivered_at", BigInteger),
    Column("consumed_by_step", Text, nullable=False),
    Column("request_id", Text),
    Column("request_hash", Text),
    Column("trace", Text),
    Index(
        "ix_workflow_events__pending",
        *("task_id", "run_number", "type", "position"),
        postgresql_where=text("delivered_at IS NULL"),
        sqlite_where=text("delivered_at IS NULL"),
    ),
    Index(
        "uq_workflow_events__request",
        *("request_id", "namespace"),
        unique=True,
        postgresql_where=text("request_id IS NOT NULL"),
        sqlite_where=text("request_id IS NOT NULL"),
    ),
)

# Messages to handlers. One that has not ended has a task of the same id, which says whether somebody executes it.
hooks = Table(
    "hooks",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", _name(), nullable=False),
    Column("name", _name(), nullable=False),
    Column("hook_id", _name(), nullable=False),
    Column("status", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("attempts", Integer, nullable=False),  # executions that ended
    Column("max_attempts", Integer),  # NULL: no maximum
    Column("retry_delay", BigInteger, nullable=False),
    Column("retry_backoff", Text, nullable=False),
    Column("retry_max_delay", BigInteger),
    Column("error_name", Text),
    Column("error_message", Text),
    Column("error_details", Text),
    Column("error_non_retryable", Boolean),
    Column("created_at", BigInteger, nullable=False),
    Column("process_at", BigInteger, nullable=False),
    Column("last_attempt_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("ended_fence", BigInteger),  # lease under which its worker ended it
    Column("request_id", Text),
    Column("request_hash", Text),
    Column("trace", Text),
    UniqueConstraint("hook_id", "namespace", name="uq_hooks__hook_id"),
    Index("ix_hooks__status", "namespace", "status", "created_at", "id"),
    Index("ix_hooks__name_status", "namespace", "name", "status", "created_at", "id"),
    Index(
        "uq_hooks__request",
        *("request_id", "namespace"),
        unique=True,
        postgresql_where=text("request_id IS NOT NULL"),
        sqlite_where=text("request_id IS NOT NULL"),
    ),
)

# Webhooks that hooks of a name go to.
hook_targets = Table(
    "hook_targets",
    metadata,
    Column("namespace", _name(), primary_key=True),
    Column("name", _name(), primary_key=True),
    Column("url", Text, nullable=False),
    Column("secrets", Text, nullable=False),  # a JSON list: they sign, so they must be known
    Column("disabled_reason", Text, nullable=False),  # why nothing is delivered; empty: it is enabled
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# Processes that host handlers: those with a stream, for as long as it is there, and those that call.
sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("namespace", _name(), nullable=False),
    Column("worker_id", _name(), nullable=False),
    Column("sdk", Text, nullable=False),
    Column("replica_id", Text, nullable=False),  # whom its stream is with; empty: it has none
    Column("connection", BigInteger, nullable=False),  # number of its newest connection
    Column("handlers", Text, nullable=False),
    Column("connected_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),  # by lease_now()
    Index("ix_sessions__namespace_worker_id", "namespace", "worker_id", "session_id"),
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
