"""Tables of one row about the database itself."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, LargeBinary, SmallInteger, Table, Text

from stepwell_server.storage.schema.metadata import metadata

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
