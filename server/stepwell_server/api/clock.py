"""ClockService."""

from __future__ import annotations

from stepwell.v1 import clock_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceServicer
from stepwell_server.api.edge.calls import Context, asked_of, current
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.values.errors import InvalidField
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.clock import HUNG, Clock


class ClockServicer(ClockServiceServicer):
    """Translates between the wire and `engine.clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def GetClock(self, request: pb.GetClockRequest, context: Context) -> pb.GetClockResponse:
        reading = await self._clock.read()
        return pb.GetClockResponse(
            now=convert.timestamp_to_pb(reading.now),
            virtual=reading.virtual,
            lease_now=convert.timestamp_to_pb(reading.lease_now),
        )

    async def AdvanceClock(self, request: pb.AdvanceClockRequest, context: Context) -> pb.AdvanceClockResponse:
        caller = asked_of(request)
        hangs_after = (
            convert.duration_from_pb(request.hangs_after) / SECOND if request.HasField("hangs_after") else HUNG
        )
        match request.WhichOneof("target"):
            case "by":
                target = {"by": convert.duration_from_pb(request.by)}
            case "to":
                target = {"to": convert.timestamp_from_pb(request.to)}
            case _:
                raise InvalidField("target is not set: set by or to", field="target")
        with current.get().waiting():  # for workers, which send what they have done
            stand = await self._clock.advance(caller, **target, hangs_after=hangs_after)
        now = convert.timestamp_to_pb(stand.now)
        return pb.AdvanceClockResponse(now=now, arrived=stand.arrived, executing=stand.executing)
