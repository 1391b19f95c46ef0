"""The metadata of all tables."""

from __future__ import annotations

from sqlalchemy import MetaData, Text

metadata = MetaData()


def name() -> Text:
    """Text that sorts byte by byte on both databases."""
    return Text(collation="C").with_variant(Text(collation="BINARY"), "sqlite")
