"""What stands between gRPC and the servicers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import StatusCode, aio
from structlog.testing import capture_logs

from stepwell.v1 import workflows_pb2 as pb
from stepwell_server.api.edge.interceptors import _parsed_stream, observed, translated
from stepwell_server.api.edge.parsing import Parser
from stepwell_server.api.edge.shares import Turn
from stepwell_server.domain.values.limits import Limits
from stepwell_server.telemetry import Metrics


async def test_a_stream_that_ends_because_the_server_stops_ends_without_an_error() -> None:
    """gRPC raises an error of its own then, which would be logged as one of ours."""

    async def cut() -> AsyncIterator[bytes]:
        yield b""
        raise aio.BaseError

    handler: Any = SimpleNamespace(request_deserializer=pb.WatchInstancesRequest.FromString)

    assert [message async for message in _parsed_stream(Parser(Limits()), handler, cut(), Turn())] == [
        pb.WatchInstancesRequest()
    ]


async def test_a_reader_that_leaves_is_a_cancellation_and_no_error_of_the_server() -> None:
    """gRPC may fail a write before it cancels the call."""
    metrics = Metrics()
    call: Any = SimpleNamespace(
        method="/stepwell.v1.WorkflowService/WatchInstances",
        streaming=True,
        caller=SimpleNamespace(metadata={}),
        log_id="one",
        code=StatusCode.OK,
    )

    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        async with observed(metrics)(call), translated(call):
            raise aio.InternalError('Failed "execute_batch"')

    assert call.code is StatusCode.CANCELLED
    assert "call_failed" not in {one["event"] for one in logs}
    assert metrics.registry.get_sample_value("stepwell_internal_errors_total") == 0
