"""Hints between replicas: "something about these handlers changed". Losing one costs latency, never work.

PostgreSQL carries them by NOTIFY, outside the transactions that they are about. A transaction that notifies would wait
at its commit for every other that does. SQLite has one server, which needs no hints.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

import asyncpg
import structlog
from sqlalchemy import URL, text

from stepwell_server.domain.spine.handlers import Handler, TaskKind, known_handlers
from stepwell_server.domain.spine.wakes import ProcessOrder, WakeFilter
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.postgresql import SESSION

CHANNEL = "stepwell"
LONGEST_HINT = 7000  # bytes; PostgreSQL allows 8,000
ANSWER_LIMIT = 2.0
"""Longest wait for the database to take a hint or a listener, in seconds."""
RECONNECT = 0.5

_SESSION = SESSION | {"application_name": "stepwell hints"}
_LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Errors of a connection that was cut off, before, during or after its use."""

OnHint: TypeAlias = Callable[["Hint"], None]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hint:
    """A change on some replica."""

    handlers: frozenset[Handler] | None = None
    """Handlers whose next wake changed; None means that anything may have changed."""
    tasks: frozenset[int] = frozenset()
    """Held tasks whose holders must look."""
    moved: frozenset[int] = frozenset()
    """Tasks whose status, as users see it, may be another one now."""
    order: ProcessOrder | None = None
    """Work that a caller asked to have handed out."""


ANYTHING = Hint()


class Hints(Protocol):
    """How a replica hears of the others' commits."""

    @property
    def working(self) -> bool:
        """False: hints may be lost, so look more often."""

    async def listen(self, on_hint: OnHint) -> None:
        """Call back for every hint, until cancelled."""

    async def send(self, hint: Hint) -> None:
        """Hint to all other replicas. A hint that cannot be sent is dropped: their sweeps will find the change."""

    def expect_ping(self) -> None:
        """Say that a ping is about to be sent."""

    def ping(self, tx: Tx) -> None:
        """Send a hint to oneself, to see whether it comes back."""


class NoHints:
    """Hints of a server that has no other replica."""

    @property
    def working(self) -> bool:
        """Nothing can be lost."""
        return True

    async def listen(self, on_hint: OnHint) -> None:
        """Nothing ever comes."""
        await asyncio.Event().wait()

    async def send(self, hint: Hint) -> None:
        """Do nothing: there is no other replica."""

    def expect_ping(self) -> None:
        """Nothing to measure."""

    def ping(self, tx: Tx) -> None:
        """Nothing to try."""


class PostgresqlHints:
    """Hints by LISTEN and NOTIFY: one connection and one channel for a whole replica."""

    def __init__(self, url: URL, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._ping = uuid4().hex
        self._pinged_at: float | None = None
        self._listening = False
        self._connection: asyncpg.Connection[Any] | None = None

    @property
    def working(self) -> bool:
        """True if the connection is there and the last ping came back in time."""
        if not self._listening:
            return False
        if self._pinged_at is None:
            return True
        return asyncio.get_running_loop().time() - self._pinged_at < self._tuning.ping_timeout

    async def listen(self, on_hint: OnHint) -> None:
        """Listen, and connect again whenever the connection is lost: after each time, anything may have changed."""
        while True:
            try:
                await self._listen_once(on_hint)
            except _LOST as error:
                log.warning("hints_lost", error=type(error).__name__)
            finally:
                self._listening = False
            await asyncio.sleep(RECONNECT)

    async def send(self, hint: Hint) -> None:
        """Hint to all others, over the connection that listens; a hint that would be too long says "anything"."""
        connection = self._connection
        if connection is None:
            return
        names = [[one.namespace, one.kind, one.name] for one in hint.handlers or ()]
        said = [self._ping, names, list(hint.tasks), list(hint.moved), _order_row(hint.order)]
        spoken = json.dumps(said, separators=(",", ":"))
        if len(spoken.encode()) > LONGEST_HINT:
            spoken = json.dumps([self._ping])
        try:
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, spoken, timeout=ANSWER_LIMIT)
        except _LOST as error:
            log.debug("hint_dropped", error=type(error).__name__)

    def expect_ping(self) -> None:
        """Measure from now on how long the next ping takes, unless an earlier one is still missing.

        A connection over which none comes for long is dead, whatever it says of itself, and another is made.
        """
        now = asyncio.get_running_loop().time()
        if self._pinged_at is None:
            self._pinged_at = now
        elif now - self._pinged_at > self._tuning.deaf_timeout and self._connection is not None:
            self._connection.terminate()

    def ping(self, tx: Tx) -> None:
        """Send a hint that only this replica understands."""
        self._notify(tx, json.dumps({"ping": self._ping}))

    async def _listen_once(self, on_hint: OnHint) -> None:
        connection = await asyncpg.connect(self._url, timeout=ANSWER_LIMIT, server_settings=_SESSION)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            async with asyncio.timeout(ANSWER_LIMIT):
                await connection.add_listener(CHANNEL, lambda *received: self._received(received[3], on_hint))
            self._listening, self._pinged_at, self._connection = True, None, connection
            on_hint(ANYTHING)
            await gone.wait()
        finally:
            self._connection = None
            await _close(connection)

    def _received(self, payload: str, on_hint: OnHint) -> None:
        hint = json.loads(payload)
        if isinstance(hint, dict):
            if hint.get("ping") == self._ping:
                self._pinged_at = None
            return
        sender, *said = hint
        if sender == self._ping:
            return  # our own commits need no hint
        if not said:
            on_hint(ANYTHING)
            return
        names, tasks, moved, *more = said
        handlers = frozenset(known_handlers(names))
        order = _order_from(more[0]) if more and more[0] else None
        on_hint(Hint(handlers, frozenset(tasks), frozenset(moved), order))

    def _notify(self, tx: Tx, hint: str) -> None:
        tx.execute(text("SELECT pg_notify(:channel, :hint)"), {"channel": CHANNEL, "hint": hint})


def _order_row(order: ProcessOrder | None) -> list[Any]:
    if order is None:
        return []
    wanted = order.wanted
    return [wanted.namespace, sorted(wanted.kinds), sorted(wanted.names), order.max_tasks, order.max_steps]


def _order_from(row: list[Any]) -> ProcessOrder | None:
    """The order, as far as this server knows the kinds that it names. None: it knows none of them."""
    namespace, named, names, max_tasks, max_steps = row
    kinds = frozenset(kind for kind in TaskKind if kind in named)
    if named and not kinds:
        return None
    return ProcessOrder(WakeFilter(namespace, kinds, frozenset(names)), max_tasks, max_steps)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except _LOST:
        connection.terminate()
