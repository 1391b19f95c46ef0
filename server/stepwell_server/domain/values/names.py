"""Names and ids: ASCII, so that no two of them look alike, and safe in a path, a log line and a shell."""

from __future__ import annotations

import re

from stepwell_server.domain.values.errors import RequestIdInvalid

NAME_LENGTH = 64
REQUEST_ID_LENGTH = 36
DESCRIPTION_LENGTH = 1024
"""Of a namespace or a handler, for people."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_PRINTABLE = re.compile(r"[!-~]*", re.ASCII)


def is_name(text: str, length: int = NAME_LENGTH) -> bool:
    """True for 1 to `length` letters, digits, "-" or "_", not beginning with "-"."""
    return len(text) <= length and _NAME.fullmatch(text) is not None


def check_request_id(request_id: str) -> None:
    """Refuse a request id that is too long or not printable ASCII; an empty one means that there is none."""
    if len(request_id) > REQUEST_ID_LENGTH or _PRINTABLE.fullmatch(request_id) is None:
        raise RequestIdInvalid(
            f"request_id must be at most {REQUEST_ID_LENGTH} printable ASCII characters", field="request_id"
        )
