"""Requests: how a mutating call is told from another one, and from its own repetition."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.values.names import check_request_id


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a change, and its caller: two calls with one request id must ask for the same."""

    principal: str = ""
    method: str = ""
    request_id: str = ""
    """Empty: the call is not recognised when it is repeated."""
    body_hash: bytes = b""
    """Hash of all that must be equal in a repetition. Empty where there is no request id."""

    def check(self) -> None:
        """Refuse a malformed request id."""
        check_request_id(self.request_id)


NOT_ASKED = Asked()
"""Not recognised by itself: it is part of something that is."""
