"""What stands between gRPC and the servicers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from grpc import aio

from stepwell.v1 import workflows_pb2 as pb
from stepwell_server.api.interceptors import _parsed_stream
from stepwell_server.api.parsing import Parser
from stepwell_server.domain.limits import Limits


async def test_a_stream_that_ends_because_the_server_stops_ends_without_an_error() -> None:
    """gRPC raises an error of its own then, which would be logged as one of ours."""

    async def cut() -> AsyncIterator[bytes]:
        yield b""
        raise aio.BaseError

    handler: Any = SimpleNamespace(request_deserializer=pb.WatchInstancesRequest.FromString)

    assert [message async for message in _parsed_stream(Parser(Limits()), handler, cut())] == [
        pb.WatchInstancesRequest()
    ]
