"""Options that every command talking to a server has, and how it talks."""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer
from grpc import aio

from stepwell.client.channel import open_channel
from stepwell.client.client import Client
from stepwell.client.credentials import authorised
from stepwell.errors import failure_of

T = TypeVar("T")
P = ParamSpec("P")

DEFAULT_SERVER = "127.0.0.1:7350"
DEFAULT_OPS = "127.0.0.1:7351"
DEADLINE = 15.0
PATIENCE = 4.0
"""Seconds for which a server is looked for before a person is told that there is none."""


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or "//" in value.removeprefix("dns:///"):
        raise typer.BadParameter("must be HOST:PORT, such as 127.0.0.1:7350")
    return value


Server = Annotated[
    str,
    typer.Option("--server", envvar="STEPWELL_SERVER", callback=_address, help="HOST:PORT of the server."),
]
Ops = Annotated[str, typer.Option("--ops", callback=_address, help="HOST:PORT of the server's ops listener.")]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", envvar="STEPWELL_TLS_CA", help="Use TLS, trusting this PEM file.")
]
Tls = Annotated[bool, typer.Option("--tls", envvar="STEPWELL_TLS", help="Use TLS, trusting the system's authorities.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", envvar="STEPWELL_NAMESPACE", help="Namespace to work in.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_PREFIX = "STEPWELL_"
_VARIABLES = tuple(f"{_PREFIX}{name}" for name in ("SERVER", "NAMESPACE", "TLS", "TLS_CA", "TOKEN"))
_NEARLY = 0.88  # with the prefix; no setting of the server is as near

_SERVER: Mapping[str, tuple[Any, Any]] = {
    "server": (Server, DEFAULT_SERVER),
    "tls": (Tls, False),
    "tls_ca": (TlsCa, None),
}
_NAMESPACE: Mapping[str, tuple[Any, Any]] = {"namespace": (Namespace, "default")}


def misspelt_variables() -> list[str]:
    """Variables that are nearly one of these options and none of them, in one line each; all others are not ours."""
    lines = []
    for variable in sorted(set(os.environ) - set(_VARIABLES)):
        if variable.startswith(_PREFIX):
            meant = difflib.get_close_matches(variable, _VARIABLES, n=1, cutoff=_NEARLY)
            lines += [f"{variable} is not a setting; did you mean {setting}?" for setting in meant]
    return lines


def token() -> str | None:
    """The token in STEPWELL_TOKEN: not an option, as other users of the machine could read it."""
    return os.environ.get("STEPWELL_TOKEN") or None


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a command talks to, and the namespace."""

    server: str
    tls: bool
    tls_ca: Path | None
    namespace: str = "default"

    def client(self, patience: float | None = None) -> Client:
        """A client of the SDK, to be opened; it looks for its server until a deadline, or for so many seconds."""
        return Client(
            self.server,
            namespace=self.namespace,
            tls=self.tls,
            tls_ca=self.tls_ca,
            token=token(),
            patience=None if patience is None else timedelta(seconds=patience),
        )

    def call(self, talk: Callable[[aio.Channel], Awaitable[T]]) -> T:
        """Open a channel, talk, close it. CallFailed if the server refuses or does not answer."""

        async def talking() -> T:
            opened = open_channel(self.server, tls=self.tls, tls_ca=self.tls_ca, patience=PATIENCE)
            async with authorised(opened, token()) as channel:
                try:
                    return await talk(channel)
                except aio.AioRpcError as error:
                    raise failure_of(error, self.server) from None

        return asyncio.run(talking())

    def use(self, talk: Callable[[Client], Awaitable[T]]) -> T:
        """The same with a client of the SDK, whose streams outlive a server that is away for a while."""

        async def talking() -> T:
            async with self.client(PATIENCE) as client:
                return await talk(client)

        return asyncio.run(talking())


def on_server(command: Callable[Concatenate[Target, P], None]) -> Callable[..., None]:
    """Give a command the options that say where its server is; it gets them as its first argument."""
    return _extended(command, _SERVER)


def in_namespace(command: Callable[Concatenate[Target, P], None]) -> Callable[..., None]:
    """The same for a command that works in one namespace."""
    return _extended(command, {**_NAMESPACE, **_SERVER})


def _extended(command: Callable[..., None], added: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """The command with more options, as typer reads them: from the signature."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    more = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        target = Target(**{name: values.pop(name) for name in added})
        command(target, **values)

    run.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *more)}
    return run
