"""Temporal's development server on an SQLite file: the smallest Temporal there is, and not a production cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.contestants.engine import Engine
from bench.processes import PEERS_PYTHON, free_port, start_driver, start_program

PROGRAM = PEERS_PYTHON.with_name("temporal")
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL")
SETTINGS = f"development server, SQLite {' '.join(PRAGMAS)}; steps are activities; not how Temporal runs in production"


@asynccontextmanager
async def start(url: str) -> AsyncIterator[Engine]:
    """Start the server, a worker and a client."""
    path, address = Path(url.removeprefix("sqlite:///")), f"127.0.0.1:{free_port()}"
    pragmas = [argument for pragma in PRAGMAS for argument in ("--sqlite-pragma", pragma)]
    command = [str(PROGRAM), "server", "start-dev", "--headless", "--log-level", "error", "--db-filename", str(path)]
    where = ["--ip", "127.0.0.1", "--port", address.rpartition(":")[2]]
    async with (
        start_program(*command, *where, *pragmas, log=path.with_suffix(".log")) as server,
        start_driver("bench.drivers.temporal_worker", address, python=PEERS_PYTHON) as worker,
        start_driver("bench.drivers.temporal_client", address, worker.facts["version"], python=PEERS_PYTHON) as client,
    ):
        yield Engine(
            f"Temporal dev server, Python SDK {worker.facts['version']}",
            SETTINGS,
            client,
            {"server": server, "worker": worker.watched, "client": client.watched},
        )
