"""Delete replies that have expired, names without use, and sessions that are long gone."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import structlog

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.storage.database.database import READ, Database, Tx, TxOptions
from stepwell_server.storage.database.paging import Position
from stepwell_server.storage.spine import handlers, names, requests, sessions, tasks

_OPTIONS = TxOptions(label="prune", attempts=1)

log = structlog.get_logger()


async def prune(db: Database, kinds: Kinds, names_kept: Micros, tuning: Tuning = DEFAULT) -> None:
    """Delete what is old, a batch at a time, every ten minutes or so. Runs until cancelled."""
    batch = tuning.prune_batch
    while True:
        await asyncio.sleep(tuning.prune_interval * random.uniform(0.8, 1.2))
        try:
            while await db.run_tx(lambda tx: requests.delete_expired(tx, batch), _OPTIONS) >= batch:
                continue  # those of the same instant go together: it may be more than a batch
            await forget_names(db, kinds, names_kept, batch)  # before sessions go that say what is hosted
            await db.run_tx(sessions.delete_gone, _OPTIONS)
        except StepwellError as error:
            log.debug("prune_skipped", reason=error.reason)


async def forget_names(db: Database, kinds: Kinds, kept: Micros, batch: int = DEFAULT.prune_batch) -> None:
    """Forget the names of handlers that nothing refers to and that no worker has hosted for so long."""
    at, hosted = await db.run_tx(_hosted, READ)
    for first in range(0, len(hosted), batch):
        await db.run_tx(partial(handlers.note, used=hosted[first : first + batch]), _OPTIONS)
    unused_since = at - kept - handlers.STALE  # a use is written up to that late
    after: Position | None = []
    while after is not None:
        forget = partial(names.forget, unused_since=unused_since, limit=batch, after=after, history=kinds.history())
        after = await db.run_tx(forget, _OPTIONS)


def _hosted(tx: Tx) -> tuple[Micros, list[Handler]]:
    """Read the hosted handlers and the time. A worker that connects later notes its handlers itself."""
    at = tasks.stamp(tx).now
    return at, list(sessions.hosted(tx))
