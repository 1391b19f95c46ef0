"""Wiring: which parts a server has, made from its settings. The app starts and stops them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stepwell_server.api.clock import ClockServicer
from stepwell_server.api.dispatchers import DispatcherServicer
from stepwell_server.api.edge.access import load_policy
from stepwell_server.api.edge.admission import Admission, Bounds
from stepwell_server.api.edge.interceptors import Pipeline, layers
from stepwell_server.api.edge.listeners import Servicers
from stepwell_server.api.edge.messages import Messages
from stepwell_server.api.edge.parsing import Parser
from stepwell_server.api.edge.shares import Shares
from stepwell_server.api.hooks import HookServicer
from stepwell_server.api.namespaces import NamespaceServicer
from stepwell_server.api.server import ServerServicer
from stepwell_server.api.transactions import TransactionServicer
from stepwell_server.api.workers import Terms, WorkerServicer
from stepwell_server.api.workflows import WorkflowServicer
from stepwell_server.config import Settings
from stepwell_server.domain.spine.work import TIMEOUT_MARGIN, Rules
from stepwell_server.domain.values.times import to_micros
from stepwell_server.domain.values.tuning import Tuning
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
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.timings import Timings
from stepwell_server.engine.transactions import Transactions
from stepwell_server.engine.worker_calls import WorkerCalls
from stepwell_server.engine.workers import Workers
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.engine.workflows.kind import WorkflowKind
from stepwell_server.engine.workflows.workflows import Workflows
from stepwell_server.storage.database.database import Database
from stepwell_server.storage.database.hints import Hints
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Ground:
    """The settings, the database and the identity that all parts of a server share."""

    settings: Settings
    tuning: Tuning
    db: Database
    hints: Hints
    identity: Identity


def bounds(settings: Settings) -> Bounds:
    """How many calls the server takes in at once."""
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


def pipeline(settings: Settings, metrics: Metrics, admission: Admission, shares: Shares, tuning: Tuning) -> Pipeline:
    """The layers that every call goes through."""
    policy = load_policy(settings.policy)
    deadline = settings.unary_deadline.total_seconds()
    messages = Messages(settings.message_deadline.total_seconds())
    parser = Parser(settings.limits.to_limits())
    around = layers(metrics, admission, shares, deadline)
    return Pipeline(around, policy, messages, parser, tuning)


class Parts:
    """The replica, the use cases that stand on it, and the servicers that call these."""

    def __init__(self, ground: Ground, timings: Timings) -> None:
        settings, identity = ground.settings, ground.identity
        workflow_kind = WorkflowKind(ground.db, ground.tuning, hears)
        self._ground = ground
        self.replica = replica = _replica(ground, Kinds.of(workflow_kind, HookKind(), listener=tell), timings)
        tokens, batches = PageTokens(identity.deployment.page_token_key), Batches(replica)
        self.workers = Workers(replica, tokens, identity.replica_id)
        self.worker_calls = WorkerCalls(replica)
        self.dispatchers = Dispatchers(replica, hands_out=settings.process)
        self._instances = Instances(replica, workflow_kind.watches, tokens)
        self._workflows = Workflows(replica, batches, self._instances)
        self._hooks = Hooks(replica, batches, tokens)
        operators = {**self._workflows.operators(), **self._hooks.operators()}
        self._transactions = Transactions(replica, batches, operators)
        self._namespaces = Namespaces(ground.db, tokens, identity.limits, replica.registry)
        webhooks = _webhooks(replica, settings)
        self._targets = Targets(replica, tokens, settings.allowed_webhooks, webhooks.refresh if webhooks else None)
        self.loops: dict[str, Callable[[], Awaitable[None]]] = {**replica.loops(to_micros(settings.handler_retention))}
        if webhooks:
            self.loops["webhooks"] = webhooks.run

    def drain(self) -> None:
        """Tell all streams and waiting calls to go elsewhere."""
        self.workers.drain()
        self.worker_calls.drain()
        self.replica.drain()
        self.dispatchers.drain()

    def servicers(self) -> Servicers:
        """One servicer per service of the contract."""
        settings, identity = self._ground.settings, self._ground.identity
        server = Server(self._ground.db, identity, self._ground.hints)
        terms = Terms(settings.leases.to_times(), settings.steps.to_policy(), settings.drain_grace.total_seconds())
        return Servicers(
            workflows=WorkflowServicer(self._workflows, self._instances),
            workers=WorkerServicer(self.workers, self.worker_calls, server, terms),
            namespaces=NamespaceServicer(self._namespaces),
            clock=ClockServicer(Clock(self.replica)),
            server=ServerServicer(server),
            dispatchers=DispatcherServicer(self.dispatchers, identity.replica_id),
            hooks=HookServicer(self._hooks, self._targets),
            transactions=TransactionServicer(self._transactions),
        )


def _replica(ground: Ground, kinds: Kinds, timings: Timings) -> Replica:
    settings, virtual = ground.settings, ground.identity.deployment.virtual_clock
    rules = Rules(
        limits=ground.identity.limits,
        times=settings.leases.to_times(),
        timeout_margin=0 if virtual else TIMEOUT_MARGIN,
    )
    return Replica(
        ground.db,
        ground.hints,
        kinds,
        rules,
        timings=timings,
        virtual=virtual,
        embedded=settings.dispatch == "embedded",
        tuning=ground.tuning,
        express=settings.express and not virtual and settings.database_url.get_backend_name() == "postgresql",
    )


def _webhooks(replica: Replica, settings: Settings) -> Webhooks | None:
    """The part that delivers webhooks. None: this server does not."""
    if not settings.webhooks:
        return None
    return Webhooks(replica, Deliverer(settings.allowed_webhooks, settings.webhook_ca_file), settings.webhook_places)
