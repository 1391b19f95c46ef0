"""Payloads in one text column: JSON as it came, bytes behind a mark that no JSON text begins with."""

from __future__ import annotations

import base64

from stepwell_server.domain.payloads import Payload
from stepwell_server.domain.workflows import Failure

_BINARY = "!"


def to_text(payload: Payload | None) -> str | None:
    """What is stored of a payload. None: there is none."""
    if payload is None:
        return None
    if payload.binary is None:
        return payload.json
    return f"{_BINARY}{base64.b64encode(payload.binary).decode()}:{payload.encoding}"


def from_text(text: str | None) -> Payload | None:
    """The payload from what is stored."""
    if text is None:
        return None
    if not text.startswith(_BINARY):
        return Payload(text)
    body, _, encoding = text[1:].partition(":")
    return Payload(binary=base64.b64decode(body), encoding=encoding)


def failure_row(failure: Failure | None) -> dict[str, str | None]:
    """A failure as columns of a row."""
    if failure is None:
        return {"error_name": None, "error_message": None, "error_details": None}
    return {"error_name": failure.name, "error_message": failure.message, "error_details": failure.details}


def failure_from(name: str | None, message: str | None, details: str | None) -> Failure | None:
    """A failure from its columns."""
    return None if name is None else Failure(name, message or "", details=details or "")
