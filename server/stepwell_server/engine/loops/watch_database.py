"""Notice that the database went away, or came back, also when nobody calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from stepwell_server.domain.errors import StepwellError
from stepwell_server.storage import clock
from stepwell_server.storage.database import Database

INTERVAL = 5.0
INTERVAL_WHILE_AWAY = 0.5

log = structlog.get_logger()


async def watch_database(db: Database, report: Callable[[bool], Awaitable[None]]) -> None:
    """Ask the database for the time, every few seconds, and report whether it answers. Runs until cancelled."""
    while True:
        was_reachable = db.reachable
        try:
            await db.run_tx(clock.read, read_only=True)
        except StepwellError as error:
            log.warning("database_unreachable", reason=error.reason)
        except Exception:
            log.exception("database_watch_failed")
        if db.reachable and not was_reachable:
            log.info("database_reachable")
        await report(db.reachable)
        interval = INTERVAL if db.reachable else INTERVAL_WHILE_AWAY
        await asyncio.sleep(interval * random.uniform(0.8, 1.2))
