"""Hooks, and the webhooks that they can go to."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def _name() -> sa.types.TypeEngine:
    return sa.Text(collation="C").with_variant(sa.Text(collation="BINARY"), "sqlite")


def _number(name: str, **options: bool) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), **options)


def upgrade() -> None:
    _create_hooks()
    op.create_table(
        "hook_targets",
        sa.Column("namespace", _name(), primary_key=True),
        sa.Column("name", _name(), primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=False),
        _number("created_at", nullable=False),
        _number("updated_at", nullable=False),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE hooks SET (fillfactor = 85)")  # a hook is changed once or twice, in place


def _create_hooks() -> None:
    op.create_table(
        "hooks",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, _name(), nullable=False) for name in ("namespace", "name", "hook_id")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("status", "payload", "idempotency_key")),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer()),
        _number("retry_delay", nullable=False),
        sa.Column("retry_backoff", sa.Text(), nullable=False),
        _number("retry_max_delay"),
        *(sa.Column(name, sa.Text()) for name in ("error_name", "error_message", "error_details")),
        sa.Column("error_non_retryable", sa.Boolean()),
        _number("created_at", nullable=False),
        _number("process_at", nullable=False),
        _number("last_attempt_at"),
        _number("ended_at"),
        _number("ended_fence"),
        sa.Column("request_id", sa.Text()),
        sa.Column("request_hash", sa.Text()),
        sa.UniqueConstraint("hook_id", "namespace", name="uq_hooks__hook_id"),
    )
    op.create_index("ix_hooks__status", "hooks", ["namespace", "status", "created_at", "id"])
    op.create_index("ix_hooks__name_status", "hooks", ["namespace", "name", "status", "created_at", "id"])
    given = sa.text("request_id IS NOT NULL")
    op.create_index(
        "uq_hooks__request",
        "hooks",
        ["request_id", "namespace"],
        unique=True,
        postgresql_where=given,
        sqlite_where=given,
    )
