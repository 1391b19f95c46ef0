"""Restate: its server on a fresh folder, one worker of the Python or the TypeScript SDK, and an HTTP client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from shutil import which

import psutil

from bench.contestants.engine import Engine
from bench.processes import PEERS_PYTHON, ROOT, NotInstalled, free_port, start_driver, start_program

MODULES = ROOT / "requirements" / "peers.npm" / "node_modules"
GRANIAN = PEERS_PYTHON.with_name("granian")
DURABLE = ("rocksdb-disable-wal", "rocksdb-disable-wal-fsync", "default-num-partitions", "default-replication")


def start_python(url: str) -> AbstractAsyncContextManager[Engine]:
    """With a Python worker under granian, which is twice as fast as hypercorn."""
    port = str(free_port())
    serve = [str(GRANIAN), "--interface", "asgi", "--http", "2", "--loop", "uvloop", "--workers", "1"]
    where = ["--host", "127.0.0.1", "--port", port, "--log-level", "error"]
    return _start(url, port, "Python SDK, granian", [*serve, *where, "bench.drivers.restate_worker:app"])


def start_typescript(url: str) -> AbstractAsyncContextManager[Engine]:
    """With a TypeScript worker under Node."""
    port = str(free_port())
    worker = str(ROOT / "bench" / "drivers" / "restate_worker.js")
    return _start(url, port, "TypeScript SDK", [which("node") or "node", worker, port])


@asynccontextmanager
async def _start(url: str, port: str, sdk: str, command: list[str]) -> AsyncIterator[Engine]:
    folder = Path(url.removeprefix("file://"))
    ingress, admin, node = (f"127.0.0.1:{free_port()}" for _ in range(3))
    environment = {
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_BIND_ADDRESS": node,
        "RESTATE_ADVERTISED_ADDRESS": f"http://{node}",
        "RESTATE_BASE_DIR": str(folder / "data"),
        "RESTATE_NODE_NAME": "bench",
        "RESTATE_CLUSTER_NAME": "bench",
        "RESTATE_AUTO_PROVISION": "true",
        "RESTATE_LOG_FILTER": "warn",
        "DO_NOT_TRACK": "1",
    }
    program = _program()
    addresses = (f"http://{ingress}", f"http://{admin}", f"http://127.0.0.1:{port}", _version())
    quiet = {"NODE_PATH": str(MODULES), "RESTATE_LOGGING": "ERROR"}
    async with (
        start_program(program, log=folder / "server.log", **environment) as server,
        start_program(*command, log=folder / "worker.log", **quiet) as worker,
        start_driver("bench.drivers.restate_client", *addresses, python=PEERS_PYTHON) as client,
    ):
        processes: dict[str, psutil.Process] = {"server": server, "worker": worker, "client": client.watched}
        yield Engine(f"Restate {client.facts['version']}, {sdk}", _settings(), client, processes)


@cache
def _program() -> str:
    """The server, which is in the package of this machine's kind."""
    found = [*MODULES.glob("@restatedev/restate-server-*/bin/restate-server")]
    if not found:
        raise NotInstalled("restate-server")
    return str(found[0])


@cache
def _version() -> str:
    package = json.loads((MODULES / "@restatedev" / "restate-server" / "package.json").read_text())
    return str(package["version"])


@cache
def _settings() -> str:
    dumped = subprocess.run([_program(), "--dump-config"], check=True, capture_output=True, text=True).stdout
    lines = {line.strip() for line in dumped.splitlines() if line.startswith(DURABLE)}
    return "as it ships: " + ", ".join(sorted(lines))
