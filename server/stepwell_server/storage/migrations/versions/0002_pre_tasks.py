"""The spine: tasks, whom they are addressed to, fences and the lease clock."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def _name() -> sa.types.TypeEngine:
    return sa.Text(collation="C").with_variant(sa.Text(collation="BINARY"), "sqlite")


def upgrade() -> None:
    op.create_table(
        "handlers",
        sa.Column("namespace", _name(), primary_key=True),
        sa.Column("kind", _name(), primary_key=True),
        sa.Column("name", _name(), primary_key=True),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("namespace", _name(), nullable=False),
        sa.Column("kind", _name(), nullable=False),
        sa.Column("name", _name(), nullable=False),
        sa.Column("key", _name(), nullable=False),
        sa.Column("run_number", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("run_at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("frame_number", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.Text(), nullable=False),
        sa.Column("wake_again", sa.Boolean(), nullable=False),
        sa.Column("interruptions", sa.Integer(), nullable=False),
        sa.Column("acked", sa.Boolean(), nullable=False),
        sa.Column("open_steps", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text()),
        sa.Column("connection", sa.BigInteger()),
        sa.Column("locked_until", sa.BigInteger()),
        sa.Column("payload", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("namespace", "kind", "name", "key", name="uq_tasks__namespace_kind_name_key"),
        sqlite_autoincrement=True,
    )
    _index("claim", ["namespace", "kind", "name", "priority", "run_at", "id"], "status = 'pending'")
    _index("next_wake", ["namespace", "kind", "name", "run_at"], "status = 'pending'")
    _index("held", ["namespace", "kind", "name"], "status = 'processing'")
    for table, column in (("lease_clock", "last_tick"), ("fence_counter", "last")):
        op.create_table(
            table,
            sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
            sa.Column(column, sa.BigInteger(), nullable=False),
            sa.CheckConstraint("id = 1", name=f"ck_{table}__one_row"),
        )
        op.execute(f"INSERT INTO {table} VALUES (1, 0)")
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE fences")
        # Rows change in place and die young: leave them room, and tidy up by their number, not by a share of the table.
        op.execute(
            "ALTER TABLE tasks SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0,"
            " autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)"
        )


def _index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(f"ix_tasks__{name}", "tasks", columns, postgresql_where=where, sqlite_where=where)
