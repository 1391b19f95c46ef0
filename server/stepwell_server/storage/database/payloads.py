"""Payloads in one text column: JSON as it came, bytes behind a mark that no JSON text begins with. Also what comes with
them: failures, and traces as JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

from sqlalchemy import Row

from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.traces import Trace

FAILURE = ("error_name", "error_message", "error_details", "error_non_retryable")

_BINARY = "!"


def to_text(payload: Payload | None) -> bytes | None:
    """Convert a payload to its column, for `with_payloads`. None: there is none."""
    if payload is None:
        return None
    if payload.binary is None:
        return payload.json.encode()
    return b"".join((_BINARY.encode(), base64.b64encode(payload.binary), b":", payload.encoding.encode()))


def from_text(text: str | None) -> Payload | None:
    """The payload from what is stored."""
    if text is None:
        return None
    if not text.startswith(_BINARY):
        return Payload(text)
    body, _, encoding = text[1:].partition(":")
    return Payload(binary=base64.b64decode(body), encoding=encoding)


def trace_to_text(trace: Trace) -> str | None:
    """Convert a trace to its column. None: there is none."""
    return json.dumps(dict(trace), separators=(",", ":")) if trace else None


def trace_from(row: Row[Any]) -> Trace:
    """The trace from a row that may have its column."""
    text = getattr(row, "trace", None)
    return {} if text is None else json.loads(text)


def failure_row(failure: Failure | None) -> dict[str, str | bool | None]:
    """A failure as columns of a row."""
    if failure is None:
        return dict.fromkeys(FAILURE)
    return dict(zip(FAILURE, (failure.name, failure.message, failure.details, failure.non_retryable), strict=True))


def failure_from(row: Row[Any]) -> Failure | None:
    """A failure from a row that has its columns."""
    if row.error_name is None:
        return None
    return Failure(row.error_name, row.error_message, bool(row.error_non_retryable), row.error_details)
