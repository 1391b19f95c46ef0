"""DBOS: a library, and therefore one process, with the best of its settings that were tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.contestants.engine import Engine
from bench.processes import PEERS_PYTHON, NotInstalled, start_driver

SETTINGS = "4 executor threads, pool of 16 (the best of those tried); durability is the database's"


@asynccontextmanager
async def start(url: str) -> AsyncIterator[Engine]:
    """Start its process."""
    if not PEERS_PYTHON.exists():
        raise NotInstalled("dbos")
    async with start_driver("bench.drivers.dbos_app", url, python=PEERS_PYTHON) as client:
        yield Engine(f"DBOS {client.facts['version']}", SETTINGS, client, {"client and worker": client.watched})
