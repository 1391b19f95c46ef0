"""Definitions: all that a handler ever had, the one in force, and when a session left that hosts one."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def _name() -> sa.types.TypeEngine:
    return sa.Text(collation="C").with_variant(sa.Text(collation="BINARY"), "sqlite")


def upgrade() -> None:
    op.create_table(
        "declarations",
        *(sa.Column(key, _name(), primary_key=True) for key in ("namespace", "kind", "name")),
        sa.Column("hash", sa.Text(), primary_key=True),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("put", sa.BigInteger()),
    )
    for key in ("definition", "definition_hash"):
        op.add_column("handlers", sa.Column(key, sa.Text()))
    op.add_column("sessions", sa.Column("left_at", sa.BigInteger()))
