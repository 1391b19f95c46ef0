"""Keyset paging: a page begins after a position, and the position travels in a token that only we can make."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, literal, tuple_

from stepwell_server.domain.values.errors import PageTokenInvalid

Position: TypeAlias = list[str | int]

LONGEST_TOKEN = 1024
_SIGNATURE = 16


@dataclass(frozen=True, slots=True)
class PageTokens:
    """Makes and reads page tokens. The key lives in the database, so any replica reads any replica's tokens."""

    key: bytes

    def encode(self, scope: Sequence[object], position: Position) -> str:
        """The token of the page after `position`, good only for the same scope: method, namespace and filters."""
        body = json.dumps(position, separators=(",", ":"), ensure_ascii=False).encode()
        return base64.urlsafe_b64encode(self._sign(scope, body) + body).decode().rstrip("=")

    def decode(self, scope: Sequence[object], token: str) -> Position:
        """The position in the token. A token that is forged, altered or from another scope is refused."""
        if len(token) > LONGEST_TOKEN:
            raise _invalid()
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        signature, body = raw[:_SIGNATURE], raw[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(scope, body)):
            raise _invalid()
        position: Position = json.loads(body)
        return position

    def _sign(self, scope: Sequence[object], body: bytes) -> bytes:
        context = json.dumps([*scope], separators=(",", ":"), default=str).encode()
        return hmac.digest(self.key, len(context).to_bytes(4, "big") + context + body, hashlib.sha256)[:_SIGNATURE]


def beyond(
    columns: Sequence[ColumnElement[Any]], position: Position, *, descending: bool = False
) -> ColumnElement[bool]:
    """Rows after the position in the order of these columns, compared as a whole so that an index serves it."""
    here = tuple_(*(literal(value, column.type) for column, value in zip(columns, position, strict=True)))
    return tuple_(*columns) < here if descending else tuple_(*columns) > here


def _invalid() -> PageTokenInvalid:
    return PageTokenInvalid("page_token is not one that this method gave for these filters", field="page_token")
