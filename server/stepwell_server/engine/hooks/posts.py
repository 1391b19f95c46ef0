"""Deliveries: one signed POST to one receiver, over a connection that goes only where it may.

The name is resolved once, and every address is checked. The connection goes to one of these addresses, even if the
name has another by then. There are no redirects and no proxies of the environment, and a connection carries one
request.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

import h11

from stepwell_server import __version__
from stepwell_server.domain.hooks.addresses import IpAddress, is_public
from stepwell_server.domain.hooks.webhooks import (
    NEW_SECRET_BYTES,
    AllowList,
    Endpoint,
    Failed,
    Post,
    PostResult,
    Secret,
    Target,
    check_url,
    judge,
    request_of,
)
from stepwell_server.domain.values.errors import InvalidWebhookUrl, SsrfBlocked
from stepwell_server.domain.values.failures import Failure

USER_AGENT = f"stepwell/{__version__}"
READ_BYTES = 4096
AT_ONCE = 50
"""Deliveries of one replica at a time, to all targets."""

_RESOLVERS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook-resolver")
"""A thread for each: names that take long to resolve keep nothing else waiting."""

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[IpAddress]]]
Dial: TypeAlias = Callable[[IpAddress, int], Awaitable[socket.socket]]


@dataclass(frozen=True, slots=True)
class PostLimits:
    """Bounds on one delivery: seconds to connect and in total, bytes of headers and of body that are read."""

    connect: float = 5.0
    total: float = 15.0
    header_bytes: int = 32 * 1024
    body_bytes: int = 64 * 1024


def new_secret() -> Secret:
    """A secret for a target that was put without one."""
    return Secret(secrets.token_bytes(NEW_SECRET_BYTES))


async def resolve(host: str, port: int) -> list[IpAddress]:
    """Every address that the host has now."""
    loop = asyncio.get_running_loop()
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await loop.run_in_executor(_RESOLVERS, look_up)
    return [ip_address(address[0]) for *_, address in found]


async def dial(address: IpAddress, port: int) -> socket.socket:
    """A connection to exactly this address."""
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


class Deliverer:
    """Delivers hooks to webhooks, to those on the allow-list also where they are not public."""

    def __init__(
        self,
        allowed: AllowList = frozenset(),
        ca_file: Path | None = None,
        *,
        limits: PostLimits | None = None,
        resolve: Resolve = resolve,
        dial: Dial = dial,
    ) -> None:
        self._allowed = allowed
        self._limits = limits or PostLimits()
        self._resolve = resolve
        self._dial = dial
        self._tls = ssl.create_default_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)

    async def deliver(self, target: Target, post: Post) -> PostResult:
        """Attempt it once and return the result. An error of the receiver is a result, never an exception."""
        try:
            return await self._attempt(target, post)
        except (InvalidWebhookUrl, SsrfBlocked) as refused:
            return Failed(Failure(refused.reason, str(refused)))
        except TimeoutError as late:
            return _failed("WEBHOOK_TIMEOUT", str(late) or f"no answer within {self._limits.total:g} seconds")
        except ssl.SSLCertVerificationError as error:
            return _failed("WEBHOOK_UNREACHABLE", f"the receiver's certificate is not accepted: {error.verify_message}")
        except socket.gaierror as error:
            return _failed("WEBHOOK_UNREACHABLE", f"the host could not be resolved: {error.strerror}")
        except OSError as error:
            return _failed("WEBHOOK_UNREACHABLE", f"the connection failed: {error.strerror or type(error).__name__}")
        except h11.RemoteProtocolError as error:
            return _failed("WEBHOOK_UNREACHABLE", f"the receiver did not answer in HTTP: {error}")

    async def _attempt(self, target: Target, post: Post) -> PostResult:
        endpoint = check_url(target.url, self._allowed)  # again: rules and allow-list may be newer than the target
        headers, body = request_of(target, endpoint, post, USER_AGENT)
        deadline = asyncio.get_running_loop().time() + self._limits.total
        async with asyncio.timeout_at(deadline):
            exchange = _Exchange(*await self._connect(endpoint), self._limits)
        try:
            async with asyncio.timeout_at(deadline):
                exchange.send(endpoint.path, headers, body)
                status, retry_after = await exchange.read_head()
            return judge(status, retry_after, await exchange.read_body(deadline), post.now)
        finally:
            exchange.close()

    async def _connect(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses = await self._checked_addresses(endpoint)
        try:
            async with asyncio.timeout(self._limits.connect):
                sock = await self._dial_one(addresses, endpoint.port)
                try:
                    return await asyncio.open_connection(sock=sock, ssl=self._tls, server_hostname=endpoint.host)
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError:
            raise TimeoutError(f"no connection within {self._limits.connect:g} seconds") from None

    async def _checked_addresses(self, endpoint: Endpoint) -> Sequence[IpAddress]:
        """The addresses of the host, looked up once. One address that is not public refuses the host."""
        addresses = await self._resolve(endpoint.host, endpoint.port)
        vouched_for = (endpoint.host, endpoint.port) in self._allowed
        if not vouched_for and not all(is_public(address) for address in addresses):
            raise SsrfBlocked("the host of url has an address that is not public", field="url")
        return addresses

    async def _dial_one(self, addresses: Sequence[IpAddress], port: int) -> socket.socket:
        """Connect to the first of these addresses that answers, and to no other."""
        failed = OSError("the host has no address")
        for address in dict.fromkeys(addresses):
            try:
                sock = await self._dial(address, port)
            except OSError as error:
                failed = error
                continue
            if ip_address(sock.getpeername()[0]) == address:
                return sock
            sock.close()
            raise SsrfBlocked("the connection did not go to the address that was checked", field="url")
        raise failed


class _Exchange:
    """One request and its answer, as far as it may be read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: PostLimits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.header_bytes)
        self._budget = 0

    def send(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Begin to send everything; an answer may come before the end of it."""
        request = h11.Request(method="POST", target=path, headers=list(headers.items()))
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")

    async def read_head(self) -> tuple[int, str | None]:
        """The status, and when to come back if the receiver says so."""
        self._budget = self._limits.header_bytes
        while not isinstance(event := await self._next(), h11.Response):
            pass  # an answer may be announced, as with 100 Continue
        retry_after = dict(event.headers).get(b"retry-after")
        return event.status_code, None if retry_after is None else retry_after.decode("latin-1")

    async def read_body(self, deadline: float) -> bytes:
        """As much of the body as comes in time and within the limit: whatever happens to it, the status has decided."""
        self._budget = self._limits.body_bytes
        body = b""
        with suppress(OSError, h11.RemoteProtocolError):
            async with asyncio.timeout_at(deadline):
                while isinstance(event := await self._next(), h11.Data):
                    body += event.data
        return body

    def close(self) -> None:
        """Hang up without waiting for the other side."""
        self._writer.transport.abort()

    async def _next(self) -> object:
        """The next event of the answer, read within the budget."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if not self._budget:
                raise h11.RemoteProtocolError("the answer is too long")
            data = await self._reader.read(min(self._budget, READ_BYTES))
            self._budget -= len(data)
            self._http.receive_data(data)
        return event


def _failed(name: str, message: str) -> Failed:
    return Failed(Failure(name, message), is_outage=True)
