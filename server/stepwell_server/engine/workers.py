"""Use cases of workers: connect, and each exchange of the stream as a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import structlog

from stepwell_server.domain.hooks.hooks import check_hook_name
from stepwell_server.domain.spine.frames import Frame, RunNews
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Task, Verdict
from stepwell_server.domain.values.errors import (
    DuplicateHandler,
    InvalidField,
    InvalidWorkflowName,
    NamespaceNotFound,
    ProtocolUnsupported,
    SessionHasStream,
    SessionNotRegistered,
    ShuttingDown,
    StepwellError,
    Superseded,
)
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.names import is_name
from stepwell_server.domain.values.pages import Page, PageRequest
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.spine.calls import Answer, Claim, Renew
from stepwell_server.engine.spine.claims import Claimed, Handed, Rotation, Seat
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.handout import LONGEST_PAUSE, SHORTEST_PAUSE
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.local_workers import Delivery, Place
from stepwell_server.engine.spine.outbox import Outbox
from stepwell_server.engine.spine.replica import Spine
from stepwell_server.engine.spine.requests import Request
from stepwell_server.engine.spine.waits import Waits
from stepwell_server.engine.workflows.book import changed_statuses, ref
from stepwell_server.engine.workflows.calls import EndOvertime, ReportFrames
from stepwell_server.storage import namespaces
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.hooks import hooks
from stepwell_server.storage.spine import handlers, requests, sessions
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.claims import STICKY
from stepwell_server.storage.spine.requests import RequestKey
from stepwell_server.storage.spine.sessions import Session
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import runs as run_store

PROTOCOL = (1, 1)
"""Lowest and highest version of the worker protocol that is spoken."""
LONGEST_CLAIM: Micros = 30 * SECOND
"""How long a claim can wait for work."""
MOST_CLAIMED = 100
MOST_HANDLERS = 1000
LABEL_LENGTH = 128
DESCRIPTION_LENGTH = 1024
SHOWN_TASKS = 100
SHOWN_HANDLERS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hello:
    """How a worker introduces itself."""

    worker_id: str
    session_id: str
    """Its `session_key`, here and in all calls below."""
    sdk: str
    protocol_version: int
    namespace: str
    hosted: tuple[Registration, ...]
    held: tuple[Held, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be."""
        lowest, highest = PROTOCOL
        if not lowest <= self.protocol_version <= highest:
            spoken = f"this server speaks versions {lowest} to {highest} of the protocol, not {self.protocol_version}"
            raise ProtocolUnsupported(spoken, minimum=lowest, maximum=highest)
        for name, text in (("worker_id", self.worker_id), ("sdk", self.sdk)):
            if len(text) > LABEL_LENGTH:
                raise InvalidField(f"{name} is longer than {LABEL_LENGTH} characters", field=name)
        if len(self.hosted) > MOST_HANDLERS:
            raise InvalidField(f"a worker hosts at most {MOST_HANDLERS} handlers", field="handlers")
        seen: set[Handler] = set()
        for one in self.hosted:
            _check_registration(one)
            if one.handler in seen:
                raise DuplicateHandler(
                    "two handlers have the same kind and name", kind=one.handler.kind, name=one.handler.name
                )
            seen.add(one.handler)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, as operators see it."""

    session: Session
    tasks: tuple[tuple[Handler, str, Micros], ...]
    """Handler, key and time of the claim of what it holds, the first of them."""
    task_count: int


class Workers:
    """Workers of this replica's streams, and those that call."""

    def __init__(self, spine: Spine, tokens: PageTokens, replica_id: str) -> None:
        self._spine = spine
        self._tokens = tokens
        self._replica_id = replica_id
        self._connections: dict[str, Connection] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._waits = Waits()
        self._rotation = Rotation()

    # ---- streams

    async def connect(self, hello: Hello) -> tuple[Connection, list[Held]]:
        """Take a worker's stream in, and say what it still holds: that moves to this stream, all else goes back."""
        hello.check()
        if self._waits.is_draining:  # it holds what it holds: another replica, or this one's successor, takes it in
            raise ShuttingDown("the server is going away; connect again", retry_after=1.0)
        session = self._session_of(hello, self._replica_id)
        connection_number, kept, returned, at = await self._spine.db.run_tx(lambda tx: self._meet(tx, session, hello))
        committed = committed_by([*kept, *returned], [], at)
        hosted = frozenset(one.handler for one in hello.hosted)
        self._spine.bus.registered |= hosted
        self._spine.announce(replace(committed, touched=committed.touched | hosted))
        owner = Owner(hello.session_id, connection_number)
        connection = self._open(owner, hello.namespace, hosted)
        still_held = [Held(task.id, task.fence) for task in kept]
        for held in still_held:
            self._spine.dispatcher.hold(connection.place, held)
        self._spine.dispatcher.look([held.task_id for held in still_held], tell_all=True)
        return connection, still_held

    def _open(self, owner: Owner, namespace: str, hosted: frozenset[Handler]) -> Connection:
        older = self._connections.get(owner.session_id)
        if older is not None and older.owner.connection > owner.connection:
            raise Superseded("a newer connection of this session has taken over", connection=older.owner.connection)
        if older is not None:
            older.stop(Superseded("a newer connection of this session has taken over", connection=owner.connection))
        place = Place(owner, hosted, lambda deliveries: None, lambda held, news: None, namespace=namespace)
        outbox = Outbox(self._spine.registry.limits.outbox_bytes)
        read_state = partial(self.state, owner.session_id)
        connection = Connection(owner, place, self._spine.committer, self._spine.dispatcher, read_state, outbox)
        place.deliver, place.tell = connection.deliver, connection.tell
        self._connections[owner.session_id] = connection
        self._spine.dispatcher.enter(place)
        if self._waits.is_draining:  # since it was asked in
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
            served = await self._spine.db.run_tx(lambda tx: _disconnect(tx, connection.owner))
            self._spine.bus.serve(frozenset(served))
        except StepwellError as error:
            log.warning("session_left_to_lapse", reason=error.reason)

    async def all_left(self, longest: float) -> None:
        """Wait until no stream is being taken leave of, or so many seconds."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=longest)

    def drain(self) -> None:
        """Tell every worker that the replica goes away. Claims that wait for work come back without."""
        self._waits.drain()
        self._spine.dispatcher.close()
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

    def _session_of(self, hello: Hello, replica_id: str) -> Session:
        hosted = tuple(one.handler for one in hello.hosted)
        return Session(hello.session_id, hello.namespace, hello.worker_id, hello.sdk, replica_id, hosted)

    def _meet(self, tx: Tx, session: Session, hello: Hello) -> tuple[int, list[Task], list[Task], store.Stamp]:
        if namespaces.get(tx, session.namespace) is None:
            raise NamespaceNotFound("there is no such namespace", namespace=session.namespace)
        if hello.hosted:
            self._register(tx, session, hello)
        number = sessions.connect(tx, session)
        mine = store.lock_held(tx, session.session_id)
        at = store.stamp(tx)
        owner, named = Owner(session.session_id, number), set(hello.held)
        times = self._spine.committer.rules.times
        kept = [task.renewed(owner, at.lease_now, times) for task in mine if Held(task.id, task.fence) in named]
        returned = [_dropped(task, at.now) for task in mine if Held(task.id, task.fence) not in named]
        if mine:
            store.save(tx, [*kept, *returned])
            before = {task.id: task for task in mine}
            workflows.copy_status(tx, changed_statuses(before, returned), at.now)
        return number, kept, returned, at

    def _register(self, tx: Tx, session: Session, hello: Hello) -> None:
        handlers.admit(tx, session.namespace, session.handlers, self._spine.registry.limits.handlers)
        handlers.register(tx, hello.hosted)

    # ---- without a stream

    async def register(self, hello: Hello) -> int:
        """Declare what a session without a stream hosts. Returns its connection number."""
        hello.check()
        session = self._session_of(hello, "")

        def work(tx: Tx) -> int:
            known = sessions.get(tx, session.session_id)
            if known is not None and known.replica_id:
                raise SessionHasStream("this session is connected by a stream")
            if namespaces.get(tx, session.namespace) is None:
                raise NamespaceNotFound("there is no such namespace", namespace=session.namespace)
            self._register(tx, session, hello)
            return sessions.connect(tx, session)

        return await self._spine.db.run_tx(work)

    async def claim(
        self, namespace: str, session_id: str, most: int, wait: Micros, only: frozenset[Handler], request: Request
    ) -> list[Delivery]:
        """Lease due tasks to a session without a stream, waiting for some to become due."""
        session = await self._caller(namespace, session_id)
        key = request.key(namespace)
        replayed = await self._spine.db.run_tx(lambda tx: _recall(tx, key))
        if replayed is not None:
            return await self._with_state(replayed)
        hosted = frozenset(session.handlers)
        seat = Seat(Owner(session_id, session.connection), hosted & only if only else hosted, min(most, MOST_CLAIMED))
        claimed = await self._claim_within(seat, Sender(namespace, session_id), wait)
        leases = [[one.task.id, one.task.fence] for one in claimed.handed]
        await self._spine.db.run_tx(lambda tx: requests.remember(tx, key, leases))
        return await self._with_state([one.task for one in claimed.handed])

    async def give_back(self, left_out: Iterable[Delivery]) -> None:
        """Return what was claimed and does not fit into the answer, uncounted, before anybody can ask for more."""
        answers = [self._spine.dispatcher.give_back(one.handed) for one in left_out]
        await asyncio.gather(*filter(None, answers), return_exceptions=True)

    async def _claim_within(self, seat: Seat, sender: Sender, wait: Micros) -> Claimed:
        loop, bus = asyncio.get_running_loop(), self._spine.bus
        ends, pause, was_draining = self._waits.ends(wait / SECOND), SHORTEST_PAUSE, self._waits.is_draining
        patience = 0 if bus.time.virtual else STICKY
        while True:
            number = bus.number
            claimed = await self._claim_once(seat, sender, patience)
            if claimed.handed or loop.time() >= ends or self._waits.is_draining is not was_draining:
                return claimed
            with suppress(TimeoutError):
                if bus.due_handlers(seat.handlers.__contains__):  # others take it, or hold it back
                    async with self._waits.until(min(ends, loop.time() + pause)):
                        await bus.changed_since(number)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    async with self._waits.until(ends):
                        await bus.wait_until_due(seat.handlers.__contains__)

    async def _claim_once(self, seat: Seat, sender: Sender, patience: Micros) -> Claimed:
        """Ask for what is due as far as is known, then for the rest, until something is handed out."""
        due = {handler for handler, _ in self._spine.bus.due_handlers(seat.handlers.__contains__)}
        claimed = Claimed()
        for asked in self._rotation.of(due, seat.handlers - due):
            claimed = await self._spine.committer.submit(Claim([replace(seat, handlers=asked)], patience), sender)
            if claimed.handed:
                break
        return claimed

    async def renew(self, namespace: str, session_id: str, held: Sequence[Held]) -> list[Answer]:
        """Extend leases of a session without a stream. That is also its chance to learn what is over by itself."""
        await self._spine.registry.limits_of(namespace)
        session = await self._spine.db.run_tx(lambda tx: _touch(tx, session_id))
        owner = Owner(session_id, 0 if session is None else session.connection)
        times = self._spine.committer.rules.times
        sender = Sender(namespace, session_id)
        submit = self._spine.committer.submit

        async def kept(one: Held) -> Answer:
            renewal = submit(Renew(held=one, owner=owner, times=times), sender)
            overtime = submit(EndOvertime(ReportFrames(one, session_id)), sender)
            renewed, after = await asyncio.gather(renewal, overtime)
            answer: Answer = renewed if renewed.verdict is Verdict.STALE else after
            return answer

        return list(await asyncio.gather(*map(kept, held)))

    async def commit(self, namespace: str, session_id: str, held: Held, frames: tuple[Frame, ...]) -> RunNews:
        """Apply frames about one task."""
        await self._spine.db.run_tx(lambda tx: _touch(tx, session_id))
        size = sum(frame.size for frame in frames)
        report = ReportFrames(held, session_id, frames, size, namespace, by_call=True)
        news: RunNews = await self._spine.committer.submit(report, Sender(namespace, session_id))
        if news.stale is not None and not news.answers:
            raise news.stale
        return news

    async def limits_of(self, namespace: str) -> Limits:
        """What workers of a namespace may send."""
        registry = self._spine.registry
        own = await registry.limits_of(namespace)
        return replace(
            registry.limits,
            payload_bytes=own.max_payload_bytes,
            steps_per_run=own.max_steps_per_run,
            pending_events=own.max_pending_events,
        )

    def now(self) -> Micros:
        """About what the database's clock says."""
        return self._spine.bus.time.now()

    async def state(self, session_id: str, held: Held, offset: int = 0) -> Delivery:
        """All that a worker must know of a task that it holds, without the first steps if it has those."""

        def work(tx: Tx) -> Task | None:
            task = store.get(tx, [held.task_id]).get(held.task_id)
            mine = task is not None and task.owner is not None and task.owner.session_id == session_id
            return task if task is not None and mine and task.fence == held.fence else None

        task = await self._spine.db.run_tx(work, READ)
        if task is None:
            raise held.lost()
        (delivery,) = await self._with_state([task])
        return replace(delivery, steps=delivery.steps[max(0, offset) :])

    async def _caller(self, namespace: str, session_id: str) -> Session:
        await self._spine.registry.limits_of(namespace)
        session = await self._spine.db.run_tx(lambda tx: _touch(tx, session_id))
        if session is None or session.namespace != namespace:
            raise SessionNotRegistered("register the handlers of this session first")
        if session.replica_id:
            raise SessionHasStream("this session is connected by a stream")
        return session

    async def _with_state(self, tasks: Sequence[Task]) -> list[Delivery]:
        if not tasks:
            return []

        def work(tx: Tx) -> list[Delivery]:
            ids = [task.id for task in tasks]
            steps = run_store.all_steps(tx, [ref(task) for task in tasks])
            known, found = workflows.known(tx, ids), hooks.get_many(tx, ids)
            return [
                Delivery(Handed(task, known.get(task.id), hook=found.get(task.id)), tuple(steps[ref(task)]))
                for task in tasks
            ]

        return await self._spine.db.run_tx(work, READ)

    # ---- looking

    async def list(self, namespace: str, page: PageRequest) -> Page[WorkerView]:
        """One page of the workers that are connected, to any replica, and of those that call."""
        limit = page.limit(self._spine.registry.limits.page_size)
        await self._spine.registry.limits_of(namespace)
        scope = ["ListWorkers", namespace]
        after = self._tokens.decode(scope, page.token) if page.token else None

        def work(tx: Tx) -> tuple[list[Session], list[sessions.HeldRow]]:
            found = sessions.list_page(tx, namespace, limit + 1, after)
            return found, sessions.held_by(tx, [one.session_id for one in found])

        found, held = await self._spine.db.run_tx(work, READ)
        shown = [_view(one, held) for one in _fitting(found[:limit])]
        more = len(found) > len(shown)
        last = shown[-1].session if shown else None
        token = self._tokens.encode(scope, [last.worker_id, last.session_id]) if more and last else ""
        return Page(shown, token)


def _dropped(task: Task, now: Micros) -> Task:
    """A task that its worker does not name: one that had arrived was given up and counts, another was never seen."""
    return task.lapsed(now) if task.acked else task.given_back()


def _check_registration(one: Registration) -> None:
    if one.handler.kind is TaskKind.HOOK:
        check_hook_name(one.handler.name)
    elif not is_name(one.handler.name):
        raise InvalidWorkflowName(
            'a workflow is named by 1 to 64 letters, digits, "-" or "_", not beginning with "-"',
            field="name",
            workflow=one.handler.name,
        )
    if len(one.description) > DESCRIPTION_LENGTH:
        raise InvalidField(f"description is longer than {DESCRIPTION_LENGTH} characters", field="description")


def _disconnect(tx: Tx, owner: Owner) -> set[Handler]:
    """Count a session as gone. Returns whom those host that are left."""
    sessions.disconnect(tx, owner)
    return sessions.served(tx)


def _touch(tx: Tx, session_id: str) -> Session | None:
    session = sessions.get(tx, session_id)
    if session is not None and not session.replica_id:
        sessions.confirm(tx, [Owner(session_id, session.connection)])
    return session


def _recall(tx: Tx, key: RequestKey) -> list[Task] | None:
    """The tasks of an earlier claim with this request id that are still held under the same fence."""
    leases = requests.recall(tx, key)
    if leases is None:
        return None
    fences = dict(leases)
    found = store.get(tx, fences)
    return [task for task in found.values() if task.fence == fences[task.id] and task.owner is not None]


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
