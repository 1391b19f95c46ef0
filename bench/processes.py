"""Processes of a measurement: Stepwell's server, drivers that take orders, and what all of them use."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

ROOT = Path(__file__).parents[1]
PYTHON = Path(sys.executable)
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
LONGEST_LINE = 2**26
ORDER_TIMEOUT = 280.0
STOP_TIMEOUT = 20.0
LISTENING = re.compile(r"listening on (\S+)")


class DidNotAnswer(Exception):
    """A process ended before it answered, or said nothing that is understood; its own words are on stderr."""


class NotInstalled(Exception):
    """A program that `make peers` installs is not there."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{Path(program).name} is not installed: make peers")


# ---- drivers


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that takes orders, see `drivers/orders.py`."""

    process: asyncio.subprocess.Process
    facts: dict[str, Any]
    """What it said of itself."""

    @property
    def watched(self) -> psutil.Process:
        """The process, to be measured."""
        return psutil.Process(self.process.pid)

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have one load run and return what was measured."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"load": load, **sizes}).encode() + b"\n")
        return await _answer(self.process, load)


@asynccontextmanager
async def start_driver(
    module: str, *arguments: str, python: Path = PYTHON, before: Sequence[str] = ()
) -> AsyncIterator[Driver]:
    """A driver that is ready; at the end it has no more orders and goes, or is killed. `before` runs the module."""
    command = (str(python), "-m", *before, module, *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe, limit=LONGEST_LINE)
    assert process.stdin is not None
    try:
        async with asyncio.timeout(ORDER_TIMEOUT):
            facts = await _answer(process, f"start of {module}")
        yield Driver(process, facts)
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
        raise DidNotAnswer(f"{load}: the process ended with code {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


# ---- servers


@dataclass
class Server:
    """Stepwell's server in a process of its own."""

    process: asyncio.subprocess.Process
    listen: str
    log: list[str] = field(default_factory=list)

    @property
    def watched(self) -> psutil.Process:
        """The process, to be measured."""
        return psutil.Process(self.process.pid)


@asynccontextmanager
async def start_server(
    database: str, *arguments: str, before: Sequence[str] = (), **environment: str
) -> AsyncIterator[Server]:
    """What `stepwell server` becomes, on free ports, until the end of the block. `before` runs the module."""
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), "-m", *before, "stepwell_server", "serve", "--database", database),
        *("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain-settle", "0", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
    )
    assert process.stdout is not None and process.stderr is not None
    log: list[str] = []
    reading = asyncio.create_task(_collect(process.stderr, log))
    try:
        line = (await process.stdout.readline()).decode()
        found = LISTENING.search(line)
        if found is None:
            await reading
            raise DidNotAnswer(f"the server did not start: {line}{''.join(log)}")
        yield Server(process, found[1], log)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_TIMEOUT):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
        if log:
            print("the server said:", *log[:20], sep="\n  ", file=sys.stderr)


async def _collect(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode().rstrip())


@asynccontextmanager
async def start_program(*command: str, log: Path, **environment: str) -> AsyncIterator[psutil.Process]:
    """A peer's program, which says what it has to say to a file. At the end it is killed with all its children."""
    with _open_log(log) as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=said, stderr=said, env=os.environ | environment
            )
        except FileNotFoundError:
            raise NotInstalled(command[0]) from None
    watched = psutil.Process(process.pid)
    try:
        yield watched
    finally:
        if process.returncode is not None:
            print(f"{command[0]} ended early:", *_last_lines(log), sep="\n  ", file=sys.stderr)
        with suppress(psutil.NoSuchProcess):
            for child in [*watched.children(recursive=True), watched]:
                child.kill()
        await process.wait()


def _open_log(log: Path) -> BinaryIO:
    return log.open("wb")


def _last_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-20:]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# ---- what they use


def processor_seconds(process: psutil.Process) -> float:
    """Of a process and its children, those that have ended included."""
    times = process.cpu_times()
    seconds = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            seconds += processor_seconds(child)
    return seconds
