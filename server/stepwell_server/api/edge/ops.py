"""The ops listener: health and metrics on one plaintext port, without data.

Kubernetes probes health by plaintext gRPC and Prometheus scrapes by HTTP/1.1. Both come to one port: a connection
with HTTP/2's preface is passed on to a gRPC server that has only health, and all others are answered here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from stepwell_server.api.edge.health import Health
from stepwell_server.api.edge.listeners import CannotListen

HTTP2_PREFACE = b"PRI "
HEAD_TIMEOUT = 5.0
LONGEST_HEAD = 8192
_CHUNK = 64 * 1024


class OpsListener:
    """Answers /metrics, /livez and /readyz, and passes gRPC on to `health_address`."""

    def __init__(self, health: Health, registry: CollectorRegistry, health_address: tuple[str, int]) -> None:
        self._health = health
        self._registry = registry
        self._health_address = health_address
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the address that was bound."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=LONGEST_HEAD)
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from None
        bound = self._server.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                first = await reader.readexactly(len(HTTP2_PREFACE))
            if first == HTTP2_PREFACE:
                await self._pass_on(first, reader, writer)
            else:
                async with asyncio.timeout(HEAD_TIMEOUT):
                    await self._answer(first, reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a peer that says nothing, nonsense or too much is hung up on
        finally:
            writer.close()

    async def _answer(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = first + await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        status, kind, body = self._page(method, rest.partition(" ")[0].partition("?")[0])
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else body))
        await writer.drain()

    def _page(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, plain, b"only GET\n"
        match path:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/livez":
                return HTTPStatus.OK, plain, b"ok\n"
            case "/readyz" if self._health.ready:
                return HTTPStatus.OK, plain, b"ok\n"
            case "/readyz":
                return HTTPStatus.SERVICE_UNAVAILABLE, plain, b"not ready\n"
        return HTTPStatus.NOT_FOUND, plain, b"try /metrics, /livez or /readyz\n"

    async def _pass_on(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._health_address)
        try:
            upstream_writer.write(first)
            async with asyncio.TaskGroup() as both_ways:
                both_ways.create_task(_copy(reader, upstream_writer))
                both_ways.create_task(_copy(upstream_reader, writer))
        except* OSError:
            pass
        finally:
            upstream_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        target.write(chunk)
        await target.drain()
    with suppress(OSError):
        target.write_eof()
