"""The engines under test, each as the processes that its users would run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from tests.support.servers import start_process

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin"
LONGEST_LINE = 2**26
ORDER_TIMEOUT = 280.0
STOP_TIMEOUT = 20.0
LOOK_EVERY = 1.0
"""Seconds between looks whether everybody still lives."""


class DriverEnded(Exception):
    """A process of the benchmark ended before it answered; what it said is on stderr."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that takes orders, see `drivers/orders.py`."""

    process: asyncio.subprocess.Process
    version: str

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have one load run and return what was measured."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"load": load, **sizes}).encode() + b"\n")
        return await _answer(self.process, load)


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine: whom to give orders, and the processes to watch by their role."""

    name: str
    driver: Driver
    processes: dict[str, psutil.Process]
    has_unary: bool = False
    """Whether one call can start an instance and answer with its result."""

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have one load run. DriverEnded if a process that it needs ends meanwhile: nobody would ever answer."""
        ordered = asyncio.create_task(self.driver.order(load, **sizes))
        try:
            async with asyncio.timeout(ORDER_TIMEOUT):
                while not (await asyncio.wait({ordered}, timeout=LOOK_EVERY))[0]:
                    self._check_processes(load)
                return ordered.result()
        finally:
            ordered.cancel()

    def _check_processes(self, load: str) -> None:
        for role, process in self.processes.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise DriverEnded(f"{load}: the {role} has ended")


StartEngine: TypeAlias = Callable[[str], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def start_stepwell(url: str) -> AsyncIterator[Engine]:
    """Our server, a worker and a client, each in a process of its own."""
    python = Path(sys.executable)
    async with start_process(url, "--log-level", "warning") as server:
        async with (
            start_driver(python, "bench.drivers.stepwell_worker", server.listen) as worker,
            start_driver(python, "bench.drivers.stepwell_client", server.listen) as client,
        ):
            pids = {"server": server.process.pid, "worker": worker.process.pid, "client": client.process.pid}
            name = f"Stepwell {client.version}"
            yield Engine(name, client, {role: psutil.Process(pid) for role, pid in pids.items()}, has_unary=True)
        await server.stop()
        if server.log:
            print("the server said:", *server.log[:20], sep="\n  ", file=sys.stderr)


@asynccontextmanager
async def start_dbos(url: str) -> AsyncIterator[Engine]:
    """DBOS with its best settings, in the one process that it is made for."""
    async with start_driver(PEERS / "python", "bench.drivers.dbos_app", url) as driver:
        yield Engine(f"DBOS {driver.version}", driver, {"process": psutil.Process(driver.process.pid)})


@asynccontextmanager
async def start_driver(python: Path, module: str, *arguments: str) -> AsyncIterator[Driver]:
    """A driver that is ready; at the end it has no more orders and goes, or is killed."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-m", module, *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
    )
    assert process.stdin is not None
    try:
        async with asyncio.timeout(ORDER_TIMEOUT):
            ready = await _answer(process, "start")
        yield Driver(process, ready["version"])
        process.stdin.close()
        async with asyncio.timeout(STOP_TIMEOUT):
            await process.wait()
    except TimeoutError:
        print(f"{module} did not answer or did not stop in time and is killed", file=sys.stderr)
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answer(process: asyncio.subprocess.Process, load: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise DriverEnded(f"{load}: the process ended with code {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
