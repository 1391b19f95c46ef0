"""What a failed call says: the code to act on, the reason to match on, the metadata with the values."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import aio

_DETAILS_KEY = "grpc-status-details-bin"


class CallFailed(Exception):
    """A call that the server refused, or that did not reach it.

    `code` says what to do, `reason` is the name of a value of `ErrorReason` without its prefix (empty if the error did
    not come from a Stepwell server), `metadata` holds the values that the message mentions.
    """

    def __init__(
        self, code: grpc.StatusCode, message: str, reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{message} ({reason or code.name})")
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})


def failure_of(error: aio.AioRpcError) -> CallFailed:
    """The failure that grpc's error carries, in the server's own words if it sent any."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            status = Status.FromString(value)
            info = ErrorInfo()
            if any(detail.Unpack(info) for detail in status.details):
                return CallFailed(error.code(), status.message, info.reason, dict(info.metadata))
    return CallFailed(error.code(), error.details() or "no details")
