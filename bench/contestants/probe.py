"""The ceiling probe: the smallest thing of Stepwell's shape that keeps what it acknowledges. It is no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.contestants.engine import Engine
from bench.processes import start_driver

SETTINGS = (
    "no leases, fences, retries, deduplication, policy, indexes, metrics or replay; durability is the database's "
    "(SQLite: WAL, synchronous FULL)"
)


@asynccontextmanager
async def start(url: str) -> AsyncIterator[Engine]:
    """Start its server, worker and client."""
    async with (
        start_driver("bench.probe.server", url) as server,
        start_driver("bench.probe.worker", server.facts["listen"]) as worker,
        start_driver("bench.probe.client", server.facts["listen"]) as client,
    ):
        roles = {"server": server.watched, "worker": worker.watched, "client": client.watched}
        yield Engine("Ceiling probe", SETTINGS, client, roles)
