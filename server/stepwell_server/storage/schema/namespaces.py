"""The table of namespaces."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Table, Text

from stepwell_server.storage.schema.metadata import metadata, name

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", name(), primary_key=True),
    Column("description", Text, nullable=False),
    Column("retention_complete", BigInteger),
    Column("retention_errored", BigInteger),
    Column("retention_terminated", BigInteger),
    Column("max_payload_bytes", BigInteger, nullable=False),
    Column("max_steps_per_run", Integer, nullable=False),
    Column("max_pending_events", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
