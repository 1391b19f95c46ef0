"""Real servers for tests: in this process for speed, or as a process of their own to be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from grpc import aio

from stepwell.client.channel import open_channel
from stepwell_server.app import Addresses, App
from stepwell_server.config import Settings
from stepwell_server.databases import open_database
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from tests.support.patience import PATIENCE

PLAIN = [
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),  # on a slow machine gRPC would take in megabytes that nobody reads
]
"""Options of a channel in a test."""
LISTENING = re.compile(r"listening on (\S+) \(ops (\S+)\)")


@dataclass(frozen=True)
class Served:
    """A running server and a plain channel to it: no retries, so that tests see every answer."""

    app: App
    addresses: Addresses
    channel: aio.Channel


StartServer: TypeAlias = Callable[..., Awaitable[Served]]


@asynccontextmanager
async def start_in_process(database_url: str, *, tuning: Tuning = DEFAULT, **settings: Any) -> AsyncIterator[Served]:
    """A server in this process, on free ports."""
    chosen = Settings(
        **{
            "listen": "127.0.0.1:0",
            "ops_listen": "127.0.0.1:0",
            "database": database_url,
            "drain_settle": 0,
            **settings,
        }
    )
    app = App(chosen, open_database(chosen.database_url, tuning), tuning)
    try:
        addresses = await app.start()
        async with aio.insecure_channel(addresses.listen, options=PLAIN) as channel:
            yield Served(app, addresses, channel)
    finally:
        await app.stop()


@dataclass
class ServerProcess:
    """A server in a process of its own."""

    process: asyncio.subprocess.Process
    listen: str
    ops_listen: str
    log: list[str] = field(default_factory=list)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def stop(self) -> int:
        """Ask it to go and return its exit code."""
        if self.process.returncode is None:
            self.kill(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def channel(self) -> aio.Channel:
        """A channel as the SDK opens it, with its retries."""
        return open_channel(self.listen)


class DidNotStart(Exception):
    """The server ended before it served; the text is what it said."""

    def __init__(self, code: int | None, stderr: str) -> None:
        super().__init__(stderr)
        self.code = code


@asynccontextmanager
async def start_process(
    database_url: str, *arguments: str, listen: str = "127.0.0.1:0", **environment: str
) -> AsyncIterator[ServerProcess]:
    """A server process that is killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepwell_server", "--listen", listen, "--ops-listen", "127.0.0.1:0"),
        *("--database", database_url, "--drain-settle", "0", *arguments),
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
            code = await process.wait()
            await reading
            raise DidNotStart(code, "".join(log))
        yield ServerProcess(process, found[1], found[2], log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
        await process.stdout.read()
        process._transport.close()  # type: ignore[attr-defined]  # else its pipes warn when they are collected


async def _collect(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode())
