"""Ids that the server draws for what a caller or the server itself does not name."""

from __future__ import annotations

from uuid import uuid4


def new_id() -> str:
    """An id that no other has: 32 hexadecimal digits, of which 122 bits are random."""
    return uuid4().hex
