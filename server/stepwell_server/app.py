"""The composition root: the only file that knows every part."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import structlog
from grpc import aio
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from stepwell_server import __version__
from stepwell_server.api.clock import ClockServicer
from stepwell_server.api.dispatchers import DispatcherServicer
from stepwell_server.api.edge import listeners
from stepwell_server.api.edge.access import load_policy
from stepwell_server.api.edge.admission import Admission, Bounds
from stepwell_server.api.edge.health import Health
from stepwell_server.api.edge.interceptors import Pipeline, layers
from stepwell_server.api.edge.messages import Messages
from stepwell_server.api.edge.ops import OpsListener
from stepwell_server.api.edge.parsing import Parser
from stepwell_server.api.hooks import HookServicer
from stepwell_server.api.namespaces import NamespaceServicer
from stepwell_server.api.server import ServerServicer
from stepwell_server.api.transactions import TransactionServicer
from stepwell_server.api.workers import Terms, WorkerServicer
from stepwell_server.api.workflows import WorkflowServicer
from stepwell_server.config import FAILPOINT, Settings, split_address
from stepwell_server.domain.spine.work import TIMEOUT_MARGIN, Rules
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import to_micros
from stepwell_server.engine.clock import Clock
from stepwell_server.engine.dispatchers import Dispatchers
from stepwell_server.engine.hooks.book import hears, tell
from stepwell_server.engine.hooks.hooks import Hooks
from stepwell_server.engine.hooks.kind import HookKind
from stepwell_server.engine.hooks.posts import Deliverer
from stepwell_server.engine.hooks.targets import Targets
from stepwell_server.engine.hooks.webhooks import Webhooks
from stepwell_server.engine.namespaces import Namespaces
from stepwell_server.engine.server import Identity, Server
from stepwell_server.engine.spine.batches import Batches
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.loops import supervised
from stepwell_server.engine.spine.loops.sweep import Sweep
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.transactions import Transactions
from stepwell_server.engine.worker_calls import WorkerCalls
from stepwell_server.engine.workers import Workers
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.engine.workflows.kind import WorkflowKind
from stepwell_server.engine.workflows.workflows import Workflows
from stepwell_server.storage import deployments
from stepwell_server.storage.database import clock, migrate
from stepwell_server.storage.database.database import READ, Database, Fault
from stepwell_server.storage.database.dialect import Damaged, WrongEncoding, check_file
from stepwell_server.storage.database.failpoints import Failpoints
from stepwell_server.storage.database.hints import Hints, NoHints, PostgresqlHints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.database.postgresql import PostgresqlBackend
from stepwell_server.storage.database.sqlite import SqliteBackend
from stepwell_server.storage.deployments import Deployment
from stepwell_server.telemetry import Metrics

CUT_GRACE = 1.0
"""Seconds that streams get to end after the last unary call has: whoever still listens then is cut off."""

LEAVE_GRACE = 2.0
"""Seconds for what the ended streams held to be given back."""

log = structlog.get_logger()


def open_database(url: URL) -> Database:
    """The database behind the URL. It is not contacted yet."""
    failpoints = Failpoints(os.environ.get(FAILPOINT, ""))
    if url.get_backend_name() == "sqlite":
        return Database(SqliteBackend(Path(url.database or "")), failpoints)
    return Database(PostgresqlBackend(url), failpoints)


def open_hints(url: URL) -> Hints:
    """How a server on this database hears of other servers' commits."""
    return NoHints() if url.get_backend_name() == "sqlite" else PostgresqlHints(url)


class CannotUseDatabase(Exception):
    """The database cannot be served; the text says why in one line."""


async def prepare_database(db: Database, settings: Settings) -> Deployment:
    """Bring the database to the newest schema, if that is wanted, and find out what it is."""
    if settings.auto_migrate:
        await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=settings.virtual_clock))
    await db.run_unhurried(migrate.check)
    return await db.run_tx(deployments.read, READ)


@contextmanager
def _usable_database() -> Iterator[None]:
    """Say in one line why the database cannot be used."""
    try:
        yield
    except (StepwellError, SQLAlchemyError, OSError, migrate.SchemaMissing, WrongEncoding, Damaged) as error:
        raise CannotUseDatabase(f"cannot use the database: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """What the driver said, in one line."""
    while error.__cause__ is not None and error.__cause__ is not error:
        error = error.__cause__
    said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return said[0].rpartition("'>: ")[2]  # SQLAlchemy puts the class of the driver's error first


async def migrate_database(settings: Settings) -> str:
    """Bring the database to the newest schema and return its version."""
    db = open_database(settings.database_url)
    try:
        with _usable_database():
            return (await prepare_database(db, settings)).schema_version
    finally:
        await db.close()


async def check_database(settings: Settings) -> str:
    """Return the version of the schema; refuse a database that is damaged or lacks what this server needs."""
    _check_there(settings.database_url)
    db = open_database(settings.database_url)
    try:
        with _usable_database():
            await db.run_unhurried(check_file)
            return (await prepare_database(db, settings.model_copy(update={"auto_migrate": False}))).schema_version
    finally:
        await db.close()


def _check_there(url: URL) -> None:
    """Refuse a file of SQLite that opening it would make."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise CannotUseDatabase(f"cannot use the database: there is no file {url.database}")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the server listens, with the ports it really got."""

    listen: str
    ops_listen: str


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        unary_calls=settings.unary_calls,
        waiting_calls=settings.waiting_calls,
        streams=settings.streams,
        streams_per_principal=settings.limits.streams_per_principal,
        health_watches=settings.health_watches,
        call_rate=settings.call_rate,
        call_burst=settings.call_burst,
        one_principal=not settings.policy,
    )


class App:
    """A server that is running: its database, its listeners, its loops."""

    def __init__(self, settings: Settings, db: Database) -> None:
        self.settings = settings
        self.db = db
        self.health = Health()
        self.metrics = Metrics()
        self._told: Counter[Fault] = Counter()
        self._hints = open_hints(settings.database_url)
        self._admission = Admission(_bounds(settings))
        self._background: dict[str, Callable[[], Awaitable[None]]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._servers: list[aio.Server] = []
        self._ops: OpsListener | None = None

    async def start(self) -> Addresses:
        """Prepare the database, then listen and serve. Whatever fails here ends the start with a reason."""
        for warning in self.settings.warnings():
            log.warning("unsafe_setting", warning=warning)
        for address in (self.settings.listen, self.settings.ops_listen):
            listeners.check_free(*split_address(address))  # before a database is created that nobody will serve
        with _usable_database():
            identity = await self._meet_database()
            self._assemble(identity)
            await self._sweep.once()  # what is registered and due must be known before anything is decided
            if self.db.faults[Fault.DAMAGED]:
                raise Damaged("it is damaged")
        await self.health.start()
        addresses = await self._listen(identity)
        await self._report_database(True)
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
        """Seconds for balancers to look away: as many as the operator says, else none where nobody is there."""
        is_said = "drain_settle" in self.settings.model_fields_set
        return self.settings.drain_settle.total_seconds() if is_said or not self._admission.is_deserted() else 0.0

    async def drain(self, settle: float) -> None:
        """Leave without a failed call: look unready, let balancers look away, end what is in flight.

        Streams are told to go when balancers look away, not before: who comes again through one would come back here.
        """
        log.info("draining", again="ends it at once")
        await self.health.drain()
        await asyncio.sleep(settle)
        self._workers.drain()
        self._worker_calls.drain()
        self._replica.drain()
        self._dispatchers.drain()
        await self._admission.close(self.settings.drain_grace.total_seconds())
        await self.stop(CUT_GRACE)
        log.info("stopped")

    async def stop(self, grace: float = 0.0) -> None:
        """Close the listeners, then the loops, then the database."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        if self._ops is not None:
            await self._ops.stop()
        if self._loops:
            await self._workers.all_left(LEAVE_GRACE)
        for loop in self._loops:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop
        await self.db.close()

    async def _meet_database(self) -> Identity:
        settings = self.settings
        deployment = await prepare_database(self.db, settings)
        deployments.check_clock(deployment, virtual_clock=settings.virtual_clock)
        return Identity(
            version=__version__,
            replica_id=uuid4().hex,
            started_at=(await self.db.run_tx(clock.read, READ)).lease_now,
            dispatch_mode=settings.dispatch,
            deployment=deployment,
            limits=settings.limits.to_limits(),
        )

    def _pipeline(self) -> Pipeline:
        settings = self.settings
        policy = load_policy(settings.policy)
        deadline = settings.unary_deadline.total_seconds()
        messages = Messages(settings.message_deadline.total_seconds())
        parser = Parser(settings.limits.to_limits())
        return Pipeline(layers(self.metrics, self._admission, deadline), policy, messages, parser)

    def _assemble(self, identity: Identity) -> None:
        """The replica, and the use cases that stand on it."""
        settings, virtual = self.settings, identity.deployment.virtual_clock
        workflows = WorkflowKind(self.db, hears)
        rules = Rules(
            limits=identity.limits,
            times=settings.leases.to_times(),
            timeout_margin=0 if virtual else TIMEOUT_MARGIN,
        )
        self._replica = replica = Replica(
            self.db,
            self._hints,
            Kinds.of(workflows, HookKind(), listener=tell),
            rules,
            timings=self.metrics.timings,
            virtual=virtual,
            embedded=settings.dispatch == "embedded",
            express=settings.express and not virtual and settings.database_url.get_backend_name() == "postgresql",
        )
        tokens, batches = PageTokens(identity.deployment.page_token_key), Batches(replica)
        self._workers = Workers(replica, tokens, identity.replica_id)
        self._worker_calls = WorkerCalls(replica)
        self._dispatchers = Dispatchers(replica, hands_out=settings.process)
        self._instances = Instances(replica, workflows.watches, tokens)
        self._workflows = Workflows(replica, batches, self._instances)
        self._hooks = Hooks(replica, batches, tokens)
        operators = {**self._workflows.operators(), **self._hooks.operators()}
        self._transactions = Transactions(replica, batches, operators)
        self._namespaces = Namespaces(self.db, tokens, identity.limits, replica.registry)
        self._sweep = Sweep(replica, self._workers, self._swept)
        self._background = {**replica.loops(to_micros(settings.handler_retention)), "sweep": self._sweep.run}
        self._targets = Targets(replica, tokens, settings.allowed_webhooks, self._deliver_webhooks())

    def _deliver_webhooks(self) -> Callable[[], Awaitable[None]] | None:
        """Deliver webhooks, if this server does. Returns what tells the delivering part that targets have changed."""
        settings = self.settings
        if not settings.webhooks:
            return None
        deliverer = Deliverer(settings.allowed_webhooks, settings.webhook_ca_file)
        webhooks = Webhooks(self._replica, deliverer, settings.webhook_places)
        self._background["webhooks"] = webhooks.run
        return webhooks.refresh

    async def _swept(self, reachable: bool) -> None:
        """After each sweep: what hints may have missed is looked for, and what depends on the database is told."""
        await self._report_database(reachable)
        if reachable:
            self._replica.kinds.heard(None)

    def _servicers(self, identity: Identity) -> listeners.Servicers:
        settings, server = self.settings, Server(self.db, identity, self._hints)
        terms = Terms(settings.leases.to_times(), settings.steps.to_policy(), settings.drain_grace.total_seconds())
        return listeners.Servicers(
            workflows=WorkflowServicer(self._workflows, self._instances),
            workers=WorkerServicer(self._workers, self._worker_calls, server, terms),
            namespaces=NamespaceServicer(self._namespaces),
            clock=ClockServicer(Clock(self._replica)),
            server=ServerServicer(server),
            dispatchers=DispatcherServicer(self._dispatchers, identity.replica_id),
            hooks=HookServicer(self._hooks, self._targets),
            transactions=TransactionServicer(self._transactions),
        )

    async def _listen(self, identity: Identity) -> Addresses:
        settings = self.settings
        tls = (settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        api, health = (listeners.open_server(self._pipeline()) for _ in range(2))
        listeners.register_api(api, self.health, self._servicers(identity), with_reflection=settings.serves_reflection)
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
        self._loops = [asyncio.create_task(supervised(name, loop)) for name, loop in self._background.items()]

    async def _report_database(self, reachable: bool) -> None:
        self._tell_faults()
        self.metrics.database_up.set(reachable)
        ready = reachable and not self.db.faults[Fault.DAMAGED]  # damage stays until a backup is restored
        if ready != self.health.ready:
            await self.health.set_ready(ready)

    def _tell_faults(self) -> None:
        """Count the transactions that failed since the last time, and log faults that only an operator can mend."""
        new = self.db.faults - self._told
        self._told = self.db.faults.copy()
        for fault, transactions in new.items():
            self.metrics.database_faults.labels(fault.name.lower()).inc(transactions)
            if fault in (Fault.FULL, Fault.DAMAGED):
                log.error(f"database_{fault.name.lower()}", transactions=transactions)


async def serve(settings: Settings, announce: Callable[[Addresses], None]) -> None:
    """Run a server until SIGTERM or SIGINT, then drain. A second signal ends it at once."""
    app = App(settings, open_database(settings.database_url))
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
