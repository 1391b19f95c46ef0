"""Tables of hooks: messages to handlers, and the targets that some of them go to."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, UniqueConstraint, text

from stepwell_server.storage.schema.metadata import metadata, name

# Messages to handlers. A hook that has not ended has a task of the same id, which tells whether it is executing.
hooks = Table(
    "hooks",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", name(), nullable=False),
    Column("name", name(), nullable=False),
    Column("hook_id", name(), nullable=False),
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
    Column("namespace", name(), primary_key=True),
    Column("name", name(), primary_key=True),
    Column("url", Text, nullable=False),
    Column("secrets", Text, nullable=False),  # a JSON list: they sign, so they must be known
    Column("disabled_reason", Text, nullable=False),  # why nothing is delivered; empty: it is enabled
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
