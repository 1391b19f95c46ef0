"""The server as a process: it starts, listens, drains and stops. `wiring` says which parts it has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from grpc import aio

from stepwell_server import __version__, databases, wiring
from stepwell_server.api.edge import listeners
from stepwell_server.api.edge.admission import Admission
from stepwell_server.api.edge.health import Health
from stepwell_server.api.edge.ops import OpsListener
from stepwell_server.api.edge.shares import Shares
from stepwell_server.config import Settings, split_address
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.server import Identity
from stepwell_server.engine.spine.ids import new_id
from stepwell_server.engine.spine.loops import supervised
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.storage import deployments
from stepwell_server.storage.database import clock
from stepwell_server.storage.database.database import READ, Database, Fault
from stepwell_server.storage.database.dialect import Damaged
from stepwell_server.telemetry import Metrics
from stepwell_server.wiring import Ground, Parts

CUT_GRACE = 1.0
"""Seconds that streams get to end after the last unary call. Then they are cut off."""

LEAVE_GRACE = 2.0
"""Seconds for what the ended streams held to be given back."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the server listens, with the ports it really got."""

    listen: str
    ops_listen: str


class App:
    """A server that is running: its database, its listeners, its loops."""

    def __init__(self, settings: Settings, db: Database, tuning: Tuning = DEFAULT) -> None:
        self.settings = settings
        self.tuning = tuning
        self.db = db
        self.health = Health()
        self.metrics = Metrics()
        self._reporter = databases.Reporter(db, self.health, self.metrics)
        self._hints = databases.open_hints(settings.database_url, tuning)
        self._admission = Admission(wiring.bounds(settings))
        self._shares = Shares(tuning)
        self._loops: list[asyncio.Task[None]] = []
        self._servers: list[aio.Server] = []
        self._ops: OpsListener | None = None

    async def start(self) -> Addresses:
        """Prepare the database, then listen and serve. A failure here ends the start with a reason."""
        for warning in self.settings.warnings():
            log.warning("unsafe_setting", warning=warning)
        for address in (self.settings.listen, self.settings.ops_listen):
            listeners.check_free(*split_address(address))  # before a database is created that would have no server
        with databases.usable_database():
            identity = await self._meet_database()
            self.parts = Parts(Ground(self.settings, self.tuning, self.db, self._hints, identity), self.metrics.timings)
            self.sweep = Sweep(self.parts.replica, self.parts.workers, self._swept)
            await self.sweep.once()  # what is registered and due must be known before anything is decided
            if self.db.faults[Fault.DAMAGED]:
                raise Damaged("it is damaged")
        await self.health.start()
        addresses = await self._listen()
        await self._reporter.report(True)
        self._start_loops()
        log.info(
            "serving",
            listen=addresses.listen,
            ops_listen=addresses.ops_listen,
            database=self.settings.database_url.render_as_string(hide_password=True),
            replica_id=identity.replica_id,
        )
        return addresses

    def settle_time(self) -> float:
        """Seconds for balancers to look away: as the operator set them, else none for a deserted server."""
        is_said = "drain_settle" in self.settings.model_fields_set
        return self.settings.drain_settle.total_seconds() if is_said or not self._admission.is_deserted() else 0.0

    async def drain(self, settle: float) -> None:
        """Leave without a failed call: look unready, let balancers look away, end what is in flight.

        Streams are told to go when balancers look away: before that, a balancer would send a client back here.
        """
        log.info("draining", again="ends it at once")
        await self.health.drain()
        await asyncio.sleep(settle)
        self.parts.drain()
        await self._admission.close(self.settings.drain_grace.total_seconds())
        await self.stop(CUT_GRACE)
        log.info("stopped")

    async def stop(self, grace: float = 0.0) -> None:
        """Close the listeners, then the loops, then the database."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        if self._ops is not None:
            await self._ops.stop()
        if self._loops:
            await self.parts.workers.all_left(LEAVE_GRACE)
        for loop in self._loops:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop
        await self.db.close()

    async def _meet_database(self) -> Identity:
        settings = self.settings
        deployment = await databases.prepare_database(self.db, settings)
        deployments.check_clock(deployment, virtual_clock=settings.virtual_clock)
        return Identity(
            version=__version__,
            replica_id=new_id(),
            started_at=(await self.db.run_tx(clock.read, READ)).lease_now,
            dispatch_mode=settings.dispatch,
            deployment=deployment,
            limits=settings.limits.to_limits(),
        )

    async def _swept(self, reachable: bool) -> None:
        """After each sweep: what hints may have missed is looked for, and what depends on the database is told."""
        await self._reporter.report(reachable)
        if reachable:
            self.parts.replica.kinds.heard(None)

    async def _listen(self) -> Addresses:
        settings = self.settings
        tls = (settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        handshake = self.tuning.handshake_timeout
        pipeline = partial(wiring.pipeline, settings, self.metrics, self._admission, self._shares, self.tuning)
        api, health = (listeners.open_server(pipeline(), handshake) for _ in range(2))
        listeners.register_api(api, self.health, self.parts.servicers(), with_reflection=settings.serves_reflection)
        listeners.register_health(health, self.health)
        listen = listeners.bind(api, *split_address(settings.listen), tls)
        health_address = split_address(listeners.bind(health, "127.0.0.1", 0, None))
        self._ops = OpsListener(self.health, self.metrics.registry, health_address)
        ops_listen = await self._ops.start(*split_address(settings.ops_listen))
        self._servers = [api, health]
        for server in self._servers:
            await server.start()
        return Addresses(listen, ops_listen)

    def _start_loops(self) -> None:
        loops = {**self.parts.loops, "sweep": self.sweep.run}
        self._loops = [asyncio.create_task(supervised(name, loop)) for name, loop in loops.items()]


async def serve(settings: Settings, announce: Callable[[Addresses], None]) -> None:
    """Run a server until SIGTERM or SIGINT, then drain. A second signal ends it at once."""
    app = App(settings, databases.open_database(settings.database_url))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_balanced = True

    def stop(number: signal.Signals) -> None:
        nonlocal is_balanced
        if stopping.is_set():
            os._exit(128 + number)
        is_balanced = number is not signal.SIGINT  # which is a person at a terminal
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    starting = asyncio.create_task(app.start())
    try:
        await asyncio.wait([starting, asyncio.create_task(stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # told to stop while it waited for the database
            os._exit(0)
        announce(starting.result())
        await stopping.wait()
    except BaseException:
        await app.stop()
        raise
    await app.drain(app.settle_time() if is_balanced else 0.0)
