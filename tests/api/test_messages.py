"""When the message of a call is read: once the call may be here, and only one."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from stepwell.v1 import server_pb2
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from tests.support.calls import raw
from tests.support.calls.errors import refusal
from tests.support.calls.http2 import connected
from tests.support.replicas.runs import until
from tests.support.servers.servers import Served, StartServer, start_process

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
INFO = "/stepwell.v1.ServerService/GetServerInfo"
POLICY = "tests.api.test_access:ReadersOnly"
ME = (("authorization", "me"),)
MESSAGE = 4 * 1024 * 1024 - 100
MOST = 64 * 1024 * 1024


def begin(channel: aio.Channel, method: str, **options: Any) -> Any:
    """A unary call whose messages are sent one by one, if at all."""
    return channel.stream_unary(method, request_serializer=None, response_deserializer=None)(**options)


@pytest.fixture
async def hasty(start_server: StartServer, sqlite_url: str) -> Served:
    """A server with two places that waits but a moment for messages."""
    return await start_server(sqlite_url, policy=POLICY, message_deadline=0.2, unary_calls=2)


async def test_a_caller_is_turned_away_before_its_message_is_read(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=POLICY, message_deadline=3600)

    assert (await refusal(begin(server.channel, INFO))).reason == "UNAUTHENTICATED"


async def test_headers_without_a_message_hold_a_place_for_a_moment_only(hasty: Served) -> None:
    unfinished = [begin(hasty.channel, INFO, metadata=ME) for _ in range(4)]

    refusals = [await refusal(one) for one in unfinished]

    assert {(one.code.name, one.reason) for one in refusals} >= {("DEADLINE_EXCEEDED", "SERVER_DEADLINE")}
    late = next(one for one in refusals if one.reason == "SERVER_DEADLINE")
    assert (late.metadata, late.message) == (
        {"limit": "0.2"},
        "the message of the call did not come within 0.2 seconds",
    )
    assert await ServerServiceStub(hasty.channel).GetServerInfo(server_pb2.GetServerInfoRequest(), metadata=ME)


async def test_a_unary_call_has_exactly_one_message(sqlite_server: Served) -> None:
    none, two = (begin(sqlite_server.channel, raw.LIST) for _ in range(2))
    await none.done_writing()
    for _ in range(2):
        await two.write(b"")
    await two.done_writing()

    refusals = [await refusal(call) for call in (none, two)]

    assert [one.reason for one in refusals] == ["MALFORMED_REQUEST"] * 2
    assert [one.message for one in refusals] == [
        "the call came without a message",
        "the call has one message, and another one came",
    ]


async def test_a_caller_that_leaves_before_its_message_has_come_is_a_cancellation(sqlite_server: Served) -> None:
    metrics = sqlite_server.app.metrics
    in_flight = metrics.in_flight.labels("unary")._value

    call = begin(sqlite_server.channel, INFO)
    await until(lambda: in_flight.get() == 1)
    call.cancel()
    await until(lambda: in_flight.get() == 0)

    found = [one.labels for family in metrics.calls.collect() for one in family.samples if "code" in one.labels]
    assert {one["code"] for one in found if one["method"] == INFO} == {"CANCELLED"}


async def test_unfinished_messages_of_strangers_keep_no_other_connection_from_health(sqlite_server: Served) -> None:
    unfinished = [begin(sqlite_server.channel, CHECK) for _ in range(20)]
    await asyncio.gather(*(one.wait_for_connection() for one in unfinished))

    async with aio.insecure_channel(sqlite_server.addresses.listen) as other:
        assert await HealthStub(other).Check(health_pb2.HealthCheckRequest())
    for one in unfinished:
        one.cancel()


async def test_many_may_ask_for_health_at_once_on_one_connection(sqlite_server: Served) -> None:
    health = HealthStub(sqlite_server.channel)

    answers = await asyncio.gather(*(health.Check(health_pb2.HealthCheckRequest()) for _ in range(200)))

    assert {one.status for one in answers} == {health_pb2.HealthCheckResponse.SERVING}


@pytest.mark.parametrize(("method", "frame"), [(CHECK, 16_384), (WATCH, 12), (INFO, 16_384)])
async def test_unfinished_messages_of_a_stranger_cost_little(sqlite_url: str, method: str, frame: int) -> None:
    async with start_process(sqlite_url, "--policy", POLICY, "--log-level", "error") as server:
        memory = psutil.Process(server.process.pid).memory_info
        before, peak = memory().rss, 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, memory().rss)
                await asyncio.sleep(0.02)

        async with connected(server.listen) as connection, asyncio.timeout(60):
            watching = asyncio.create_task(watch())
            streams = [connection.begin(method) for _ in range(connection.most_streams)]
            await connection.flood(streams, MESSAGE, frame)
            watching.cancel()

    assert connection.most_streams >= 256
    assert peak - before < MOST
