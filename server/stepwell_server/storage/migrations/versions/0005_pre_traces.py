"""Traces of what callers bring."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for table in ("workflow_instances", "workflow_steps", "workflow_events", "hooks"):
        op.add_column(table, sa.Column("trace", sa.Text()))
