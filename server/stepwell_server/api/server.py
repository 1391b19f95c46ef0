"""ServerService."""

from __future__ import annotations

from stepwell.v1 import server_pb2 as pb
from stepwell.v1.server_pb2_grpc import ServerServiceServicer
from stepwell_server.api.edge.calls import Context
from stepwell_server.api.wire import server as wire
from stepwell_server.engine.server import Server
from stepwell_server.engine.sessions import PROTOCOL


class ServerServicer(ServerServiceServicer):
    """Translates between the wire and `engine.server`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        clock = await self._server.clock()
        return wire.server_info_to_pb(self._server, clock, PROTOCOL)
