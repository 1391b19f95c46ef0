"""DispatcherService."""

from __future__ import annotations

from contextlib import aclosing

from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceServicer
from stepwell_server.api.edge import streams
from stepwell_server.api.edge.calls import Context, current, waiting
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import frames
from stepwell_server.domain.spine.wakes import ProcessOrder, Wake, WakeFilter
from stepwell_server.domain.values.errors import InvalidField
from stepwell_server.engine.dispatchers import Dispatchers

DEFAULT_TASKS = 100
MOST_TASKS = 1000


class DispatcherServicer(DispatcherServiceServicer):
    """Translates between the wire and `engine.dispatchers`."""

    def __init__(self, dispatchers: Dispatchers, replica_id: str) -> None:
        self._dispatchers = dispatchers
        self._replica_id = replica_id

    async def WakeStream(self, request: pb.WakeStreamRequest, context: Context) -> None:  # type: ignore[override]
        wanted = _filter(request.namespace, request.filter)
        call = current.get()
        following = self._dispatchers.follow(wanted, call.tuning.keepalive)
        async with streams.checked(call), aclosing(following) as wakes:
            async for wake in wakes:
                draining = self._dispatchers.is_draining
                now = convert.timestamp_to_pb(wake.now)
                response = pb.WakeStreamResponse(next_wake=self._wake_to_pb(wake), now=now, draining=draining)
                await streams.write(context, response)
                if draining:
                    return

    async def GetNextWake(self, request: pb.GetNextWakeRequest, context: Context) -> pb.GetNextWakeResponse:
        wake = await self._dispatchers.next_wake(_filter(request.namespace, request.filter))
        return pb.GetNextWakeResponse(next_wake=self._wake_to_pb(wake), now=convert.timestamp_to_pb(wake.now))

    async def Process(self, request: pb.ProcessRequest, context: Context) -> pb.ProcessResponse:
        for name, value in (("max_tasks", request.max_tasks), ("max_steps", request.max_steps)):
            if value < 0:
                raise InvalidField(f"{name} must not be negative", field=name)
        wanted = _filter(request.namespace, request.filter)
        order = ProcessOrder(wanted, min(request.max_tasks or DEFAULT_TASKS, MOST_TASKS), request.max_steps)
        wait = convert.duration_from_pb(request.wait)
        with waiting(wait):
            processed = await self._dispatchers.process(order, wait)
        return pb.ProcessResponse(
            handed_out=processed.handed_out,
            processed=processed.ended,
            next_wake=self._wake_to_pb(processed.wake),
            now=convert.timestamp_to_pb(processed.wake.now),
        )

    def _wake_to_pb(self, wake: Wake) -> pb.NextWake:
        return pb.NextWake(
            wake_at=None if wake.wake_at is None else convert.timestamp_to_pb(wake.wake_at),
            number=wake.number,
            unserved=[
                pb.Unserved(
                    kind=frames.handler_to_pb(handler).kind, name=handler.name, due_at=convert.timestamp_to_pb(due_at)
                )
                for handler, due_at in wake.unserved
            ],
            replica_id=self._replica_id,
        )


def _filter(namespace: str, given: pb.WakeFilter) -> WakeFilter:
    return WakeFilter(
        convert.namespace_from_pb(namespace),
        frozenset(frames.kind_from_pb(one) for one in given.kinds),
        frozenset(given.names),
    )
