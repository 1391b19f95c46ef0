"""A TCP proxy for every link of a chaos run: what comes in goes out, unless the nemesis says otherwise.

One process holds all links. It is told by lines of JSON on its standard input, and answers each when it is done:

    {"link": "worker-0/server-1", "do": "blackhole", "way": "s2c"}

- `pass`: everything goes through again; connections that lost bytes are reset.
- `delay` (`ms`, `jitter`), `rate` (`bytes` per second): later, in order.
- `cut`: open connections end, new ones are turned away. `reset`: open connections are reset, new ones are welcome.
- `blackhole` (`way`: c2s, s2c or both): bytes are taken and never arrive. `hold`: they arrive when it is over.
- `cut_reply` (`after`: a text, `odds`): what is sent is forwarded, and the connection is reset when the reply comes.
- `idle` (`seconds`): connections on which nothing moves for so long are reset.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close an RST."""


@dataclass
class Weather:
    """What happens to the bytes of a link at the moment."""

    lost: frozenset[str] = frozenset()
    held: bool = False
    refused: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    reply_after: bytes = b""
    odds: float = 0.0
    idle: float = 0.0


@dataclass(eq=False)
class Link:
    """A place to connect to, and where it leads."""

    name: str
    listen: int
    upstream: str
    """HOST:PORT, or the path of a Unix socket."""
    random: random.Random
    weather: Weather = field(default_factory=Weather)
    pairs: set[Pair] = field(default_factory=set)

    async def open(self) -> None:
        """Listen."""
        await asyncio.get_running_loop().create_server(lambda: Pair(self).client, "127.0.0.1", self.listen)

    def command(self, do: str, **options: Any) -> None:
        """Change the weather."""
        match do:
            case "pass":
                self.weather = Weather()
                for pair in list(self.pairs):
                    pair.weather_is_fine()
            case "delay":
                self.weather.delay, self.weather.jitter = options["ms"] / 1000, options.get("jitter", 0) / 1000
            case "rate":
                self.weather.rate = options["bytes"]
            case "cut":
                self.weather.refused = True
                self._reset_all()
            case "reset":
                self._reset_all()
            case "blackhole":
                way = options.get("way", "both")
                self.weather.lost = frozenset({"c2s", "s2c"} if way == "both" else {way})
            case "hold":
                self.weather.held = True
            case "cut_reply":
                self.weather.reply_after, self.weather.odds = options["after"].encode(), options["odds"]
            case "idle":
                self.weather.idle = options["seconds"]

    def _reset_all(self) -> None:
        for pair in list(self.pairs):
            pair.reset()


class End(asyncio.Protocol):
    """One end of a connection: what it receives goes to the other one, by way of the weather."""

    def __init__(self, pair: Pair, way: str) -> None:
        self.pair = pair
        self.way = way
        self.transport: asyncio.Transport | None = None
        self.to_write: list[bytes] = []
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.pair.opened(self)
        for data in self.to_write:
            self.transport.write(data)
        self.to_write = []
        if self.is_over:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.pair.received(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.pair.lost(self)

    def pause_writing(self) -> None:
        self.pair.other(self).pause()

    def resume_writing(self) -> None:
        self.pair.other(self).resume()

    def pause(self) -> None:
        """Take in no more for now."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Take in again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send, now or as soon as there is a connection."""
        if self.transport is None:
            self.to_write.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def close(self, *, hard: bool = False) -> None:
        """End the connection, with an RST if `hard`."""
        self.is_over = True
        if self.transport is None:
            return
        if hard:
            raw = self.transport.get_extra_info("socket")
            if raw is not None and raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()
        else:
            self.transport.close()


class Pair:
    """A connection through a link: the client's end and the server's."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.client = End(self, "c2s")
        self.server = End(self, "s2c")
        self.has_lost = False
        self.cuts_reply = False
        self.free_at = {"c2s": 0.0, "s2c": 0.0}
        self.queues: dict[str, deque[tuple[float, End, bytes]]] = {"c2s": deque(), "s2c": deque()}
        self.moved_at = asyncio.get_running_loop().time()

    def other(self, end: End) -> End:
        """The end across."""
        return self.server if end is self.client else self.client

    def opened(self, end: End) -> None:
        """The client has come: find the server."""
        if end is self.server:
            return
        if self.link.weather.refused:
            end.close(hard=True)
            return
        self.link.pairs.add(self)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop, upstream = asyncio.get_running_loop(), self.link.upstream
        try:
            if upstream.startswith("/"):
                await loop.create_unix_connection(lambda: self.server, upstream)
            else:
                host, _, port = upstream.rpartition(":")
                await loop.create_connection(lambda: self.server, host, int(port))
        except OSError:
            self.client.close(hard=True)

    def received(self, end: End, data: bytes) -> None:
        """Let the bytes go on as the weather says."""
        weather, to = self.link.weather, self.other(end)
        self.moved_at = asyncio.get_running_loop().time()
        if end is self.server and self.cuts_reply:
            self.reset()
        elif end.way in weather.lost:
            self.has_lost = True
        else:
            self._watch_for_reply(end, data)
            self._forward(to, end.way, data)

    def _watch_for_reply(self, end: End, data: bytes) -> None:
        weather = self.link.weather
        if end is self.client and weather.odds and weather.reply_after in data:
            self.cuts_reply = self.link.random.random() < weather.odds

    def _forward(self, to: End, way: str, data: bytes) -> None:
        """Write at once, or in order after what was delayed before. No data: close."""
        weather, now = self.link.weather, asyncio.get_running_loop().time()
        at = now + weather.delay + self.link.random.uniform(-weather.jitter, weather.jitter)
        if weather.rate:
            at = max(at, self.free_at[way]) + len(data) / weather.rate
        self.free_at[way] = max(at, self.free_at[way])
        self.queues[way].append((self.free_at[way], to, data))
        if len(self.queues[way]) == 1:
            self._pump(way)

    def _pump(self, way: str) -> None:
        """Deliver what is due, and come back for the rest."""
        loop, queue = asyncio.get_running_loop(), self.queues[way]
        while queue and not self.link.weather.held and queue[0][0] <= loop.time():
            _, to, data = queue.popleft()
            if data:
                to.write(data)
            else:
                to.close()
        if queue:
            loop.call_later(max(0.001, min(0.02, queue[0][0] - loop.time())), self._pump, way)

    def weather_is_fine(self) -> None:
        """The storm is over. Who lost bytes cannot go on."""
        self.cuts_reply = False
        if self.has_lost:
            self.reset()

    def reset(self) -> None:
        """End both connections as a broken network would."""
        self._forget()
        self.client.close(hard=True)
        self.server.close(hard=True)

    def lost(self, end: End) -> None:
        """One end is gone: so is the other, unless nothing may arrive there; then it learns of it with the weather."""
        if end.way in self.link.weather.lost:
            self.has_lost = True
        else:
            self._forget()
            self._forward(self.other(end), end.way, b"")

    def _forget(self) -> None:
        self.link.pairs.discard(self)


class Proxy:
    """All links of a run."""

    def __init__(self, links: list[dict[str, Any]], seed: int) -> None:
        self.links = {one["name"]: Link(**one, random=random.Random(f"{seed}/{one['name']}")) for one in links}

    async def run(self) -> None:
        """Serve until the standard input ends."""
        for link in self.links.values():
            await link.open()
        self._reaping = asyncio.create_task(self._reap())
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._say({"ready": len(self.links)})
        while line := await reader.readline():
            order = json.loads(line)
            self.links[order.pop("link")].command(**order)
            self._say({"done": order["do"]})

    def _say(self, answer: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            now = asyncio.get_running_loop().time()
            for link in self.links.values():
                idle = link.weather.idle
                for pair in [pair for pair in link.pairs if idle and now - pair.moved_at > idle]:
                    pair.reset()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    uvloop.run(Proxy(given["links"], given["seed"]).run())
