"""Stepwell: our server, a worker and a client, each in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.contestants.engine import Engine
from bench.processes import start_driver, start_server


@asynccontextmanager
async def start(url: str, trace: Path | None = None) -> AsyncIterator[Engine]:
    """Start all three. With a folder to trace to, each keeps its marks there (`bench.tracing`)."""

    def traced(role: str) -> list[str]:
        return [] if trace is None else ["bench.tracing", str(trace / role)]

    async with (
        start_server(url, "--log-level", "warning", before=traced("server")) as server,
        start_driver("bench.drivers.stepwell_worker", server.listen, before=traced("worker")) as worker,
        start_driver("bench.drivers.stepwell_client", server.listen, before=traced("client")) as client,
    ):
        yield Engine(
            f"Stepwell {client.facts['version']}",
            "as it ships; commits are synced before they are acknowledged (SQLite: WAL, synchronous FULL)",
            client,
            {"server": server.watched, "worker": worker.watched, "client": client.watched},
        )
