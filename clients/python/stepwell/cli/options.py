"""Options that every command talking to a server has, and how it talks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import grpc
import typer
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from grpc import aio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.channel import open_channel
from stepwell.errors import CallFailed, failure_of

T = TypeVar("T")

DEFAULT_SERVER = "127.0.0.1:7350"
DEADLINE = 15.0
WIDE = 1000


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or "//" in value.removeprefix("dns:///"):
        raise typer.BadParameter("must be HOST:PORT, such as 127.0.0.1:7350")
    return value


Server = Annotated[
    str,
    typer.Option("--server", envvar="STEPWELL_SERVER", callback=_address, help="HOST:PORT of the server."),
]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", envvar="STEPWELL_TLS_CA", help="Use TLS, trusting this PEM file.")
]
Tls = Annotated[bool, typer.Option("--tls", envvar="STEPWELL_TLS", help="Use TLS, trusting the system's authorities.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def call(talk: Callable[[aio.Channel], Awaitable[T]], server: str, *, tls: bool, tls_ca: Path | None) -> T:
    """Open a channel, talk, close it."""

    async def talking() -> T:
        async with open_channel(server, tls=tls, tls_ca=tls_ca) as channel:
            try:
                return await talk(channel)
            except aio.AioRpcError as error:
                failure = failure_of(error)
                if failure.code is grpc.StatusCode.UNAVAILABLE and not failure.reason:
                    why = failure.message.rpartition(": ")[2]
                    raise CallFailed(failure.code, f"no server answers at {server}: {why}") from None
                raise failure from None

    return asyncio.run(talking())


def print_json(message: Message) -> None:
    """Print a message as JSON, in the field names of the proto files."""
    print(MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows in the style of every list of the command; cells are plain text, whatever they hold."""
    show_header = any(columns)
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", show_header=show_header
    )
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal:
        console.width = WIDE  # a pipe has no edge to wrap at
    console.print(table)
