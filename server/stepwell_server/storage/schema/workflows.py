"""Tables of workflows: instances, their labels, steps and events."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, UniqueConstraint, text

from stepwell_server.storage.schema.metadata import metadata, name

# Executions of workflows. An instance has a task, of the same id, exactly as long as it has not ended. A transaction
# that changes the row of a living instance has that task locked. Its status is then a copy of the status of its task.
workflow_instances = Table(
    "workflow_instances",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", name(), nullable=False),
    Column("workflow", name(), nullable=False),
    Column("instance_id", name(), nullable=False),
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
    Column("namespace", name(), primary_key=True),
    Column("workflow", name(), primary_key=True),
    Column("name", name(), primary_key=True),
    Column("value", name(), primary_key=True),
    Column("created_at", BigInteger, primary_key=True),
    Column("id", BigInteger, primary_key=True),
)

# Steps of runs: what they returned, or what they wait for. One whose body is executing stands on its task's row.
workflow_steps = Table(
    "workflow_steps",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("run_number", Integer, primary_key=True, autoincrement=False),
    Column("name", name(), primary_key=True),
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
    Column("namespace", name(), nullable=False),
    Column("type", name(), nullable=False),
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
