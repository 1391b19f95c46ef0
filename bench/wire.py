"""A wire to a PostgreSQL server with distance in it: every byte arrives later by a delay, each way, and in order.

Other people's databases are not on loopback, and round trips are what they pay for. Started by `distant`.

python -m bench.wire UPSTREAM DELAY_MS      (UPSTREAM is HOST:PORT or the path of a Unix socket)
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import parse_qs, urlsplit

from bench.drivers.orders import announce, next_order
from bench.processes import start_driver


@asynccontextmanager
async def distant(url: str, delay: float) -> AsyncIterator[str]:
    """The URL of the same database, that many milliseconds away each way; the same URL if there is no delay."""
    if not delay or not url.startswith("postgresql:"):
        yield url
        return
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    upstream = f"{folder}/.s.PGSQL.5432" if folder else f"{parts.hostname}:{parts.port or 5432}"
    async with start_driver("bench.wire", upstream, str(delay)) as wire:
        user = parts.netloc.rpartition("@")[0]
        yield f"postgresql://{user}@{wire.facts['listen']}{parts.path}"


class End(asyncio.Protocol):
    """One end of a connection: what it receives is written to the other end when it is due."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.due: deque[tuple[float, bytes | None]] = deque()
        """What is under way from here to the other end, and when it arrives there; None: the end of the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._send(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._send(None)

    def _send(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        self.due.append((loop.time() + self.delay, data))
        if len(self.due) == 1:
            loop.call_at(self.due[0][0], self.arrive)

    def arrive(self) -> None:
        """Write what is due, and come back for the rest."""
        loop = asyncio.get_running_loop()
        if self.other is None or self.other.transport is None:
            loop.call_later(self.delay, self.arrive)  # still connecting
            return
        while self.due and self.due[0][0] <= loop.time():
            _, data = self.due.popleft()
            if data is None:
                self.other.transport.close()
            else:
                self.other.transport.write(data)
        if self.due:
            loop.call_at(self.due[0][0], self.arrive)


class Wire:
    """Accepts connections and opens one upstream for each."""

    def __init__(self, upstream: str, delay: float) -> None:
        self.upstream = upstream
        self.delay = delay
        self.connecting: set[asyncio.Task[None]] = set()

    def accept(self) -> End:
        """The near end of a new connection."""
        near = End(self.delay)
        task = asyncio.get_running_loop().create_task(self._connect(near))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)
        return near

    async def _connect(self, near: End) -> None:
        loop, far = asyncio.get_running_loop(), End(self.delay)
        near.other, far.other = far, near
        if self.upstream.startswith("/"):
            await loop.create_unix_connection(lambda: far, self.upstream)
        else:
            host, _, port = self.upstream.rpartition(":")
            await loop.create_connection(lambda: far, host, int(port))


async def main(upstream: str, delay_ms: str) -> None:
    """Serve until the harness has no more orders."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Wire(upstream, float(delay_ms) / 1000).accept, "127.0.0.1", 0)
    announce(listen=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.to_thread(next_order)


def precise_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are exact to some 0.1 ms: the others round up to whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(main(*sys.argv[1:]))
