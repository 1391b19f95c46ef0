"""ClockService, as its callers see it."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import clock_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from tests.support.calls.errors import refusal
from tests.support.servers.servers import Served, StartServer

DAY = 86_400


@pytest.fixture
async def clock(start_server: StartServer, database_url: str) -> ClockServiceStub:
    """The clock of a server whose time stands still."""
    return ClockServiceStub((await start_server(database_url, virtual_clock=True)).channel)


async def test_a_real_clock_says_so_and_cannot_be_moved(server: Served) -> None:
    clock = ClockServiceStub(server.channel)

    reading = await clock.GetClock(pb.GetClockRequest())
    error = await refusal(clock.AdvanceClock(pb.AdvanceClockRequest(by=Duration(seconds=1))))

    assert not reading.virtual
    assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "CLOCK_NOT_VIRTUAL")


async def test_a_year_passes_in_one_call(clock: ClockServiceStub) -> None:
    before = await clock.GetClock(pb.GetClockRequest())

    moved = await clock.AdvanceClock(pb.AdvanceClockRequest(by=Duration(seconds=365 * DAY)))

    after = await clock.GetClock(pb.GetClockRequest())
    assert moved.arrived
    assert moved.now == after.now
    assert after.now.seconds - before.now.seconds == 365 * DAY
    assert after.lease_now.seconds - before.lease_now.seconds < DAY


async def test_a_virtual_clock_stands_between_calls(clock: ClockServiceStub) -> None:
    readings = [(await clock.GetClock(pb.GetClockRequest())) for _ in range(2)]

    assert readings[0].now == readings[1].now
    assert readings[0].lease_now.ToMicroseconds() < readings[1].lease_now.ToMicroseconds()


async def test_the_clock_goes_to_an_instant_and_never_back(clock: ClockServiceStub) -> None:
    start = (await clock.GetClock(pb.GetClockRequest())).now
    target = Timestamp(seconds=start.seconds + DAY, nanos=123_456_789)

    moved = await clock.AdvanceClock(pb.AdvanceClockRequest(to=target))
    error = await refusal(clock.AdvanceClock(pb.AdvanceClockRequest(to=start)))

    assert (moved.now.seconds, moved.now.nanos) == (target.seconds, 123_456_000)
    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "CLOCK_MOVES_FORWARD_ONLY")


async def test_a_repeated_advance_moves_the_clock_once(clock: ClockServiceStub) -> None:
    request = pb.AdvanceClockRequest(by=Duration(seconds=60), request_id="once")

    answers = [await clock.AdvanceClock(request) for _ in range(3)]

    assert answers[0] == answers[1] == answers[2]
    assert (await clock.GetClock(pb.GetClockRequest())).now == answers[0].now


async def test_a_request_without_a_target_is_refused(clock: ClockServiceStub) -> None:
    error = await refusal(clock.AdvanceClock(pb.AdvanceClockRequest()))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
