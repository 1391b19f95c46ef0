"""What the row of a handler says of its name: when it was last used, whether it has a target or is told of events."""

import sqlalchemy as sa
from alembic import op

from stepwell_server.storage.database.clock import db_now

revision = "0006"
down_revision = "0005"

_EVENTS = ("workflow.%", "pipeline.%", "queue.%", "buffer.%", "continuous.%")


def upgrade() -> None:
    op.add_column("handlers", sa.Column("used_at", sa.BigInteger(), nullable=False, server_default="0"))
    for name in ("has_target", "is_listener"):
        op.add_column("handlers", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    handlers = sa.table(
        "handlers", *map(sa.column, ("namespace", "kind", "name", "used_at", "has_target", "is_listener"))
    )
    targets = sa.table("hook_targets", *map(sa.column, ("namespace", "name")))
    same = (targets.c.namespace == handlers.c.namespace) & (targets.c.name == handlers.c.name)
    has_target = sa.select(targets.c.name).where(same).correlate(handlers).exists()
    op.execute(
        sa.update(handlers).values(
            used_at=db_now(),
            has_target=(handlers.c.kind == "hook") & has_target,
            is_listener=sa.or_(*(handlers.c.name.like(event) for event in _EVENTS)),
        )
    )
    op.create_index(
        "ix_handlers__listeners",
        "handlers",
        ["namespace", "kind", "name"],
        postgresql_where=sa.text("is_listener"),
        sqlite_where=sa.text("is_listener = 1"),
    )
