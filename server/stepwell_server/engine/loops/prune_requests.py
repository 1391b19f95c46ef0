"""Forget replies that nobody may ask for again."""

from __future__ import annotations

import asyncio
import random

import structlog

from stepwell_server.domain.errors import StepwellError
from stepwell_server.storage import requests
from stepwell_server.storage.database import Database, TxOptions

INTERVAL = 600.0
BATCH = 1000

_OPTIONS = TxOptions(label="prune-requests", attempts=1)

log = structlog.get_logger()


async def prune_requests(db: Database) -> None:
    """Delete old replies, a batch at a time, every ten minutes or so. Runs until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.2))
        try:
            while await db.run_tx(lambda tx: requests.delete_expired(tx, BATCH), _OPTIONS) == BATCH:
                continue
        except StepwellError as error:
            log.debug("prune_skipped", reason=error.reason)
