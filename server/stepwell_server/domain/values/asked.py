"""Requests: how a mutating call is told from another one, and from its own repetition."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell_server.domain.values.errors import IdempotencyKeyReused
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


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key of a request. Two requests of one key must ask for the same: their hashes tell."""

    namespace: str
    principal: str
    method: str
    request_id: str
    body_hash: bytes = field(default=b"", compare=False)

    @classmethod
    def of(cls, namespace: str, asked: Asked) -> RequestKey | None:
        """The key of a request. None: it has no id, so it is not recognised when it is repeated."""
        if not asked.request_id:
            return None
        return cls(namespace, asked.principal, asked.method, asked.request_id, asked.body_hash)


def reused(request_id: str | None) -> IdempotencyKeyReused:
    """The refusal of a request id that was used for something else."""
    return IdempotencyKeyReused("this request_id was used for another request", request_id=request_id)


NOT_ASKED = Asked()
"""Not recognised by itself: it is part of something that is."""
