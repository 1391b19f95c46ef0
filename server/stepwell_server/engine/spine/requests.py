"""Who asks, and how a repeated request is recognised: what every mutating use case is given besides its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.values.names import check_request_id
from stepwell_server.storage.spine.requests import RequestKey


@dataclass(frozen=True, slots=True)
class Request:
    """A mutating call: its caller, its method, its request_id (empty: not repeatable) and all that it asked."""

    principal: str
    method: str
    request_id: str
    body: bytes

    def key(self, namespace: str) -> RequestKey:
        """What its reply is stored under: empty for calls about the server. A malformed request_id is refused."""
        check_request_id(self.request_id)
        return RequestKey(namespace, self.principal, self.method, self.request_id, self.body)
