"""Use cases of workers with a stream: connect, and look who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from stepwell_server.domain.spine.definitions import Definition
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.errors import (
    ShuttingDown,
    StepwellError,
    Superseded,
)
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.pages import Page, PageRequest
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.sessions import Hello, register, state
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.spine import sessions
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.sessions import Session

SHOWN_TASKS = 100
SHOWN_HANDLERS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, as operators see it."""

    session: Session
    tasks: tuple[tuple[Handler, str, Micros], ...]
    """Handler, key and time of the claim of what it holds, the first of them."""
    task_count: int


@dataclass(frozen=True, slots=True)
class _Met:
    """The result of a hello."""

    connection: int
    kept: list[Task]
    returned: list[Task]
    redefined: frozenset[Handler]
    at: store.Stamp


class Workers:
    """Workers of this replica's streams."""

    def __init__(self, replica: Replica, tokens: PageTokens, replica_id: str) -> None:
        self._replica = replica
        self._tokens = tokens
        self._replica_id = replica_id
        self._connections: dict[str, Connection] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_draining = False

    # ---- streams

    async def connect(self, hello: Hello) -> tuple[Connection, list[Held]]:
        """Take a worker's stream in, and say what it still holds: that moves to this stream, all else goes back."""
        hello.check(self._replica.kinds)
        if self._is_draining:  # it holds what it holds: another replica, or this one's successor, takes it in
            raise ShuttingDown("the server is going away; connect again", retry_after=1.0)
        defined = self._replica.kinds.define(hello.hosted)
        met = await self._replica.db.run_tx(lambda tx: self._meet(tx, hello, defined))
        committed = committed_by([*met.kept, *met.returned], [], met.at)
        hosted = frozenset(defined)
        self._replica.bus.registered |= hosted
        self._replica.announce(replace(committed, handlers=committed.handlers | hosted, redefined=met.redefined))
        owner = Owner(hello.session_id, met.connection)
        connection = self._open(owner, hello.namespace, hosted)
        still_held = [Held(task.id, task.fence) for task in met.kept]
        holders = self._replica.handout.holders
        for held in still_held:
            holders.hold(connection.worker, held)
        holders.look([held.task_id for held in still_held], tell_all=True)
        return connection, still_held

    def _open(self, owner: Owner, namespace: str, hosted: frozenset[Handler]) -> Connection:
        older = self._connections.get(owner.session_id)
        if older is not None and older.owner.connection > owner.connection:
            raise Superseded("a newer connection of this session has taken over", connection=older.owner.connection)
        if older is not None:
            older.stop(Superseded("a newer connection of this session has taken over", connection=owner.connection))
        connection = Connection(
            self._replica, owner, namespace, hosted, partial(state, self._replica, owner.session_id)
        )
        self._connections[owner.session_id] = connection
        self._replica.handout.workers.enter(connection.worker)
        if self._is_draining:  # since it was asked in
            connection.drain()
        return connection

    async def disconnect(self, connection: Connection, *, goodbye: bool) -> None:
        """The stream has ended: said goodbye, or broken."""
        if self._connections.get(connection.owner.session_id) is connection:
            del self._connections[connection.owner.session_id]
        leaving = asyncio.create_task(self._part(connection, goodbye=goodbye))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def _part(self, connection: Connection, *, goodbye: bool) -> None:
        try:
            await (connection.leave() if goodbye else connection.lose())
            served = await self._replica.db.run_tx(lambda tx: _disconnect(tx, connection.owner))
            self._replica.bus.serve(frozenset(served))
        except StepwellError as error:
            log.warning("session_left_to_lapse", reason=error.reason)

    async def all_left(self, longest: float) -> None:
        """Wait until no stream is being taken leave of, or so many seconds."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=longest)

    def drain(self) -> None:
        """Tell every worker that the replica goes away."""
        self._is_draining = True
        for connection in self._connections.values():
            connection.drain()

    def owners(self) -> list[Owner]:
        """Whose streams are here."""
        return [one.owner for one in self._connections.values()]

    def confirmed(self, asked: Sequence[Owner], there: set[str]) -> None:
        """End those of these streams that a newer connection superseded: all but the sessions that are there."""
        for owner in asked:
            connection = self._connections.get(owner.session_id)
            if connection is not None and connection.owner == owner and owner.session_id not in there:
                connection.stop(Superseded("a newer connection of this session has taken over"))

    def _meet(self, tx: Tx, hello: Hello, defined: Mapping[Handler, Definition]) -> _Met:
        redefined = register(tx, hello.namespace, defined, self._replica.registry.limits.handlers)
        number = sessions.connect(tx, hello.session(self._replica_id, defined))
        mine = store.lock_held(tx, hello.session_id)
        at = store.stamp(tx)
        owner, named = Owner(hello.session_id, number), set(hello.held)
        times = self._replica.rules.times
        kept = [task.renewed(owner, at.lease_now, times) for task in mine if Held(task.id, task.fence) in named]
        returned = [_dropped(task, at.now) for task in mine if Held(task.id, task.fence) not in named]
        if mine:
            store.save(tx, [*kept, *returned])
            before = {task.id: task for task in mine}
            self._replica.kinds.given_up(tx, before, returned, at)
        return _Met(number, kept, returned, redefined, at)

    async def limits_of(self, namespace: str) -> Limits:
        """The limits of frames in a namespace."""
        registry = self._replica.registry
        own = await registry.limits_of(namespace)
        return replace(
            registry.limits,
            payload_bytes=own.max_payload_bytes,
            steps_per_run=own.max_steps_per_run,
            pending_events=own.max_pending_events,
        )

    def now(self) -> Micros:
        """About what the database's clock says."""
        return self._replica.bus.time.now()

    # ---- looking

    async def list(self, namespace: str, page: PageRequest) -> Page[WorkerView]:
        """One page of the workers that are connected, to any replica, and of those that call."""
        limit = page.limit(self._replica.registry.limits.page_size)
        await self._replica.registry.limits_of(namespace)
        scope = ["ListWorkers", namespace]
        after = self._tokens.decode(scope, page.token) if page.token else None

        def work(tx: Tx) -> tuple[list[Session], list[sessions.HeldRow]]:
            found = sessions.list_page(tx, namespace, limit + 1, after)
            return found, sessions.held_by(tx, [one.session_id for one in found])

        found, held = await self._replica.db.run_tx(work, READ)
        shown = [_view(one, held) for one in _fitting(found[:limit])]
        more = len(found) > len(shown)
        last = shown[-1].session if shown else None
        token = self._tokens.encode(scope, [last.worker_id, last.session_id]) if more and last else ""
        return Page(shown, token)


def _dropped(task: Task, now: Micros) -> Task:
    """A task that its worker does not name: one that had arrived was given up and counts, another was never seen."""
    return task.lapsed(now) if task.acked else task.given_back()


def _disconnect(tx: Tx, owner: Owner) -> set[Handler]:
    """Count a session as gone. Returns whom those host that are left."""
    sessions.disconnect(tx, owner)
    return sessions.served(tx)


def _fitting(found: Sequence[Session]) -> Sequence[Session]:
    """As many as fit into a message, at least one: by the handlers that they host."""
    total = 0
    for count, session in enumerate(found):
        total += len(session.handlers) + SHOWN_TASKS
        if count and total > SHOWN_HANDLERS:
            return found[:count]
    return found


def _view(session: Session, held: Sequence[sessions.HeldRow]) -> WorkerView:
    mine = [one for one in held if one.session_id == session.session_id]
    return WorkerView(session, tuple((one.handler, one.key, one.claimed_at) for one in mine[:SHOWN_TASKS]), len(mine))
