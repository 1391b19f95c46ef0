"""A connection of HTTP/2 that is driven by hand: calls that begin and do not end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
MOST_STREAMS, INITIAL_WINDOW = 3, 4
_FRAME = 16_384


@dataclass
class Connection:
    """As much as a peer needs that floods a server as far as its windows let it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    most_streams: int = 0
    ended: set[int] = field(default_factory=set)
    _initial: int = 65_535
    _windows: dict[int, int] = field(default_factory=lambda: {0: 65_535})
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, method: str) -> int:
        """Send the headers of a call and nothing else."""
        stream = 2 * len(self._windows) - 1
        self._windows[stream] = self._initial
        names = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "server"}
        names |= {"content-type": "application/grpc", "te": "trailers"}
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in names.items())
        self._send(HEADERS, END_HEADERS, stream, block)
        return stream

    async def flood(self, streams: Sequence[int], size: int, frame: int = _FRAME) -> None:
        """Send all but the last byte of a message on each stream, as windows let it, until all have been ended."""
        head = b"\0" + struct.pack(">I", size)
        left = dict.fromkeys(streams, size - 1)
        for stream in streams:
            self._give(stream, head)
        while not self.ended.issuperset(streams):
            self._news.clear()
            sent = [self._push(left, stream, frame) for stream in streams if stream not in self.ended]
            await self.writer.drain()
            if not any(sent):
                await self._news.wait()

    def _push(self, left: dict[int, int], stream: int, frame: int) -> int:
        """Send as many zeros as the window lets, in frames of that size, and return how many."""
        room = min(left[stream], self._windows[stream], self._windows[0], _FRAME)
        for first in range(0, room, frame):
            self._give(stream, bytes(min(frame, room - first)))
        left[stream] -= room
        return room

    def _give(self, stream: int, data: bytes) -> None:
        self._send(DATA, 0, stream, data)
        self._windows[stream] -= len(data)
        self._windows[0] -= len(data)

    def _send(self, kind: int, flags: int, stream: int, body: bytes = b"") -> None:
        head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self.writer.write(head + body)

    async def listen(self) -> None:
        """Answer what must be answered, and remember windows and ends."""
        while True:
            head = await self.reader.readexactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            body = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags & ACK:
                self._take_settings(body)
            elif kind == PING and not flags & ACK:
                self._send(PING, ACK, 0, body)
            elif kind == WINDOW:
                self._windows[stream] += int.from_bytes(body, "big")
            elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
                self.ended.add(stream)
            self._news.set()

    def _take_settings(self, body: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", body):
            if name == MOST_STREAMS:
                self.most_streams = value
            if name == INITIAL_WINDOW:
                for stream in self._windows.keys() - {0}:
                    self._windows[stream] += value - self._initial
                self._initial = value
        self._send(SETTINGS, ACK, 0)
        self._settled.set()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    """A connection whose server has said how much it takes."""
    host, _, port = address.rpartition(":")
    connection = Connection(*await asyncio.open_connection(host, int(port)))
    connection.writer.write(PREFACE)
    connection._send(SETTINGS, 0, 0)
    listening = asyncio.create_task(connection.listen())
    try:
        await connection._settled.wait()
        yield connection
    finally:
        listening.cancel()
        connection.writer.close()


def _text(value: str) -> bytes:
    """A string of a header block, as it is."""
    return bytes((len(value),)) + value.encode()
