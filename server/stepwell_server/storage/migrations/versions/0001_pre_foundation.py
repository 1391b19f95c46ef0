"""The foundation: the clock, the database's identity, namespaces and replies by request_id."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "clock",
        sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("virtual_now", sa.BigInteger()),
        sa.CheckConstraint("id = 1", name="ck_clock__one_row"),
    )
    op.create_table(
        "deployment",
        sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("database_id", sa.Text(), nullable=False),
        sa.Column("page_token_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_deployment__one_row"),
    )
    op.create_table(
        "namespaces",
        sa.Column("name", sa.Text(collation="C").with_variant(sa.Text(collation="BINARY"), "sqlite"), primary_key=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("retention_complete", sa.BigInteger()),
        sa.Column("retention_errored", sa.BigInteger()),
        sa.Column("retention_terminated", sa.BigInteger()),
        sa.Column("max_payload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("max_steps_per_run", sa.Integer(), nullable=False),
        sa.Column("max_pending_events", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("namespace", sa.Text(), primary_key=True),
        sa.Column("principal", sa.Text(), primary_key=True),
        sa.Column("method", sa.Text(), primary_key=True),
        sa.Column("request_id", sa.Text(), primary_key=True),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_requests__created_at", "requests", ["created_at"])
