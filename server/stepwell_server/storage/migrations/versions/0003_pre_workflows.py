"""Workflows: instances, their steps and events; and the sessions of the workers that run them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def _name() -> sa.types.TypeEngine:
    return sa.Text(collation="C").with_variant(sa.Text(collation="BINARY"), "sqlite")


def _number(name: str, **options: bool) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), **options)


def _index(name: str, table: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=unique, postgresql_where=where, sqlite_where=where)


def upgrade() -> None:
    op.add_column("handlers", _number("registered_at"))
    op.add_column("handlers", sa.Column("description", sa.Text(), nullable=False, server_default=""))
    for counter in (sa.Column("step_count", sa.Integer()), sa.Column("pending_events", sa.Integer())):
        op.add_column("tasks", sa.Column(counter.name, counter.type, nullable=False, server_default="0"))
    op.add_column("tasks", sa.Column("sticky_session", sa.Text()))
    op.add_column("tasks", sa.Column("cached_revision", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("tasks", _number("claimed_at"))
    op.add_column("tasks", sa.Column("resolved_revision", sa.BigInteger(), nullable=False, server_default="0"))
    _create_instances()
    _create_steps()
    _create_events()
    _create_sessions()
    # From now on tasks are numbered like fences: begin above both.
    if op.get_context().dialect.name == "postgresql":
        op.execute("SELECT setval('fences', greatest(nextval('fences'), (SELECT coalesce(max(id), 0) FROM tasks)))")
    else:
        op.execute("UPDATE fence_counter SET last = max(last, (SELECT coalesce(max(id), 0) FROM tasks))")
    if op.get_context().dialect.name == "postgresql":
        # What was stored long ago is read seldom; what is being changed is changed in place.
        for table in ("workflow_instances", "workflow_steps"):
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 85)")


def _create_instances() -> None:
    op.create_table(
        "workflow_instances",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, _name(), nullable=False) for name in ("namespace", "workflow", "instance_id")),
        sa.Column("run_number", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text()) for name in ("output", "error_name", "error_message", "error_details")),
        sa.Column("error_non_retryable", sa.Boolean()),
        sa.Column("labels", sa.Text(), nullable=False),
        _number("created_at", nullable=False),
        _number("updated_at", nullable=False),
        _number("started_at"),
        _number("ended_at"),
        _number("revision", nullable=False),
        _number("first_fence", nullable=False),
        _number("ended_fence"),
        sa.Column("request_id", sa.Text()),
        sa.Column("request_hash", sa.Text()),
        sa.UniqueConstraint("instance_id", "namespace", "workflow", name="uq_workflow_instances__key"),
    )
    of_workflow = ["namespace", "workflow"]
    op.create_index("ix_workflow_instances__created", "workflow_instances", [*of_workflow, "created_at", "id"])
    op.create_index("ix_workflow_instances__status", "workflow_instances", [*of_workflow, "status", "created_at", "id"])
    _index(
        "uq_workflow_instances__request",
        "workflow_instances",
        ["request_id", "namespace"],
        "request_id IS NOT NULL",
        unique=True,
    )
    op.create_table(
        "workflow_labels",
        *(sa.Column(name, _name(), primary_key=True) for name in ("namespace", "workflow", "name", "value")),
        _number("created_at", primary_key=True),
        _number("id", primary_key=True),
    )


def _create_steps() -> None:
    op.create_table(
        "workflow_steps",
        sa.Column("task_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("run_number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", _name(), primary_key=True),
        _number("position", nullable=False),
        _number("revision", nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer()),
        _number("retry_delay"),
        sa.Column("retry_backoff", sa.Text()),
        _number("retry_max_delay"),
        _number("timeout"),
        _number("next_retry_at"),
        _number("wake_at"),
        sa.Column("event_type", sa.Text(), nullable=False),
        _number("event_at"),
        *(sa.Column(name, sa.Text()) for name in ("result", "error_name", "error_message", "error_details")),
        sa.Column("error_non_retryable", sa.Boolean()),
        _number("created_at", nullable=False),
        _number("updated_at", nullable=False),
    )
    of_run = ["task_id", "run_number"]
    op.create_index("ix_workflow_steps__position", "workflow_steps", [*of_run, "position"])
    _index("ix_workflow_steps__waiting", "workflow_steps", of_run, "status = 'waiting'")


def _create_events() -> None:
    op.create_table(
        "workflow_events",
        sa.Column("task_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("run_number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("namespace", _name(), nullable=False),
        sa.Column("type", _name(), nullable=False),
        sa.Column("payload", sa.Text()),
        _number("created_at", nullable=False),
        _number("delivered_at"),
        sa.Column("consumed_by_step", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("request_hash", sa.Text()),
    )
    pending = ["task_id", "run_number", "type", "position"]
    _index("ix_workflow_events__pending", "workflow_events", pending, "delivered_at IS NULL")
    _index(
        "uq_workflow_events__request",
        "workflow_events",
        ["request_id", "namespace"],
        "request_id IS NOT NULL",
        unique=True,
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text(), primary_key=True),
        sa.Column("namespace", _name(), nullable=False),
        sa.Column("worker_id", _name(), nullable=False),
        sa.Column("sdk", sa.Text(), nullable=False),
        sa.Column("replica_id", sa.Text(), nullable=False),
        _number("connection", nullable=False),
        sa.Column("handlers", sa.Text(), nullable=False),
        _number("connected_at", nullable=False),
        _number("seen_at", nullable=False),
    )
    op.create_index("ix_sessions__namespace_worker_id", "sessions", ["namespace", "worker_id", "session_id"])
