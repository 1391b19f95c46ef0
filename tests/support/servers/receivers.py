"""A receiver of webhooks: a real HTTPS server on loopback that answers as it is told and remembers what it got."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

import trustme

Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """What came in, and what is answered: `answer` writes the bytes of it."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.reads_bodies = True
        self.port = 0
        self.connections = 0
        self.requests: list[Received] = []
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.server_names: list[str | None] = []
        self._serving: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody is there."""
        self.connections += 1
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        """Leave everybody who is still there."""
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request, answer it, hang up."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                self.requests.append(await self._read(reader))
                self.asked.set()
                await self.answer(writer)
        finally:
            self.left.set()
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Received:
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = dict(field.split(": ", 1) for field in fields)
        size = int(headers["content-length"]) if self.reads_bodies else 0
        return Received(line, headers, await reader.readexactly(size))


def http(status: int, body: bytes = b"", **headers: str) -> Answer:
    """An answer of a few bytes, with its headers as keywords."""
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw("\r\n".join([*lines, "", ""]).encode() + body)


def raw(data: bytes) -> Answer:
    """An answer that is these bytes."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return answer


def then_silence(data: bytes) -> Answer:
    """An answer that is these bytes, and then nothing until the other side has gone."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.wait_closed()

    return answer


def for_ever(beginning: bytes, piece: bytes) -> Answer:
    """An answer that ends only when the other side has had enough."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


@asynccontextmanager
async def receiving(authority: trustme.CA, *names: str, host: str = "127.0.0.1") -> AsyncIterator[Receiver]:
    """A receiver whose certificate is for these names, which says 200 until it is told otherwise."""
    receiver = Receiver(http(200))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(tls)
    tls.sni_callback = lambda _, name, __: receiver.server_names.append(name)
    server = await asyncio.start_server(receiver.connected, host, 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.close()
        await server.wait_closed()
