"""Forget replies that nobody may ask for again, and sessions that are long gone."""

from __future__ import annotations

import asyncio
import random

import structlog

from stepwell_server.domain.errors import StepwellError
from stepwell_server.storage import requests, sessions
from stepwell_server.storage.database import Database, TxOptions

INTERVAL = 600.0
BATCH = 1000

_OPTIONS = TxOptions(label="prune", attempts=1)

log = structlog.get_logger()


async def prune(db: Database) -> None:
    """Delete what is old, a batch at a time, every ten minutes or so. Runs until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.2))
        try:
            while await db.run_tx(lambda tx: requests.delete_expired(tx, BATCH), _OPTIONS) >= BATCH:
                continue  # those of the same instant go together: it may be more than a batch
            await db.run_tx(sessions.delete_gone, _OPTIONS)
        except StepwellError as error:
            log.debug("prune_skipped", reason=error.reason)
