"""Forcing what only happens now and then; on PostgreSQL, where a transaction can wait in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.util import await_only

from stepwell_server.engine.spine import group
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.failpoints import BEFORE_COMMIT
from stepwell_server.storage.database.statements import Statement, ask
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import Engine, until

T = TypeVar("T")


@dataclass
class Gate:
    """A place where a transaction waits until a test lets it go."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_here(self) -> None:
        """Say that somebody is here, and wait."""
        self.reached.set()
        await self.opened.wait()


@asynccontextmanager
async def held_before_commit(
    engine: Engine, call: Awaitable[T], label: str = "group"
) -> AsyncIterator[asyncio.Task[T]]:
    """The call has done all its work and waits with its commit; it is let go when the block ends."""
    gate = Gate()

    def stop(point: str) -> None:
        if point == f"{BEFORE_COMMIT}/{label}" and not gate.reached.is_set():
            await_only(gate.wait_here())

    with engine.db.failpoints.install(stop):
        calling = asyncio.ensure_future(call)
        async with asyncio.timeout(PATIENCE):
            await gate.reached.wait()
        try:
            yield calling
        finally:
            gate.opened.set()
            await asyncio.wait([calling])


@contextmanager
def before_statement(engine: Engine, words: str, action: Callable[[], Awaitable[Any]]) -> Iterator[list[str]]:
    """Something else happens, once, right before the first statement of the replica that has these words in it."""
    met: list[str] = []

    def intervene(_tx: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if words in statement and not met:
            met.append(statement)
            await_only(action())

    def ask_apart(tx: Tx, asked: Mapping[Any, Statement[Any]]) -> dict[Any, Any]:
        return {name: ask(tx, one) for name, one in asked.items()}

    pools = [getattr(engine.db.backend, name).sync_engine for name in ("_pool", "_reading", "_reserved")]
    for pool in pools:
        sqlalchemy_event.listen(pool, "before_cursor_execute", intervene)
    try:
        with patch.object(group, "ask_together", ask_apart):  # a driver sees what travels together as one statement
            yield met
    finally:
        for pool in pools:
            sqlalchemy_event.remove(pool, "before_cursor_execute", intervene)


async def undecided(engine: Engine) -> None:
    """Return once a call of the replica has met a lock and takes the slow lane."""
    await until(lambda: engine.committer._slow)
