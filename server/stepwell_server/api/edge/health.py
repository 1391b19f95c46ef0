"""Health as `grpc.health.v1` and Kubernetes see it: "liveness" is the process, "readiness" also its database."""

from __future__ import annotations

from grpc import StatusCode
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import OVERALL_HEALTH
from grpc_health.v1.health import aio as health_aio

from stepwell_server.api.edge.calls import Context

LIVENESS = "liveness"
READINESS = "readiness"
SERVICES = frozenset({LIVENESS, READINESS, OVERALL_HEALTH})

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)


class HealthServicer(health_aio.HealthServicer):  # type: ignore[misc]  # it comes without types
    """Health of what there is: all that there will ever be is known from the start."""

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        if request.service not in SERVICES:
            await context.write(_UNKNOWN)
            await context.abort(StatusCode.NOT_FOUND, "health knows no such service")
        await super().Watch(request, context)


class Health:
    """The statuses, and the servicer that shows them on every listener."""

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self.ready = False
        self._draining = False

    async def start(self) -> None:
        """Say that the process lives and is not ready yet."""
        await self.servicer.set(LIVENESS, _SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Say whether calls are welcome: the database answers, and the server is not going away."""
        self.ready = ready and not self._draining
        status = _SERVING if self.ready else _NOT_SERVING
        for service in (READINESS, OVERALL_HEALTH):
            await self.servicer.set(service, status)

    async def drain(self) -> None:
        """Say that the server is going away. From now on it is never ready again."""
        self._draining = True
        await self.set_ready(False)
