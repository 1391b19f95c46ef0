"""`stepwell wake`: when something is due next, now or as it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.backoff import Reconnects
from stepwell.cli import options, presence, printing, watching
from stepwell.client.client import Client
from stepwell.durations import to_datetime
from stepwell.errors import CallFailed, failure_of
from stepwell.kinds import kind_name, kind_names, kind_number
from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub

app = typer.Typer(help="See when something is due next.", no_args_is_help=True)


def _kind(value: str) -> str:
    if value not in kind_names():
        raise typer.BadParameter(f"must be one of {', '.join(kind_names())}")
    return value


Kinds = Annotated[
    list[str],
    typer.Option(
        "--kind", metavar="KIND", parser=_kind, help="Only handlers of this kind; can be given several times."
    ),
]
Names = Annotated[
    list[str],
    typer.Option("--name", metavar="NAME", help="Only handlers of this name; can be given several times."),
]


@app.command("next")
@options.in_namespace
def next_(
    target: options.Target,
    kind: Kinds = [],  # noqa: B006 - typer copies it
    name: Names = [],  # noqa: B006 - typer copies it
    as_json: options.AsJson = False,
) -> None:
    """Show when the next task can be claimed, and which due work has no worker."""
    request = pb.GetNextWakeRequest(namespace=target.namespace, filter=_filter(kind, name))

    async def ask(channel: aio.Channel) -> pb.GetNextWakeResponse:
        return await DispatcherServiceStub(channel).GetNextWake(request, timeout=options.DEADLINE)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
    else:
        printing.print_table(["", ""], _facts(answer.next_wake, answer.now))


@app.command()
@options.in_namespace
def stream(
    target: options.Target,
    kind: Kinds = [],  # noqa: B006 - typer copies it
    name: Names = [],  # noqa: B006 - typer copies it
    as_json: options.AsJson = False,
) -> None:
    """Follow the next wake, a line per change, until Ctrl-C."""
    request = pb.WakeStreamRequest(namespace=target.namespace, filter=_filter(kind, name))
    try:
        target.use(lambda client: _follow(client, request, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(watching.INTERRUPTED) from None


async def _follow(client: Client, request: pb.WakeStreamRequest, as_json: bool) -> None:
    """Print every change, also when the server was away meanwhile. CallFailed if there is none, or it refuses."""
    reconnects, shown, has_begun = Reconnects(), None, False
    async with presence.told(client):
        while True:
            try:
                async for message in _messages(client, request):
                    has_begun = True
                    reconnects.served()
                    if message.next_wake != shown:  # else it is a keepalive
                        shown = message.next_wake
                        _print_change(message, as_json)
            except CallFailed as failure:
                if not has_begun or reconnects.are_pointless_after(failure):
                    raise
                await asyncio.sleep(reconnects.next_pause())


async def _messages(client: Client, request: pb.WakeStreamRequest) -> AsyncIterator[pb.WakeStreamResponse]:
    """Read the messages of one stream, until the server ends it or goes away."""
    call: Any = client.stub(DispatcherServiceStub).WakeStream(request)
    try:
        while (message := await call.read()) is not aio.EOF:
            yield message
            if message.draining:
                return
    except aio.AioRpcError as error:
        raise failure_of(error, client.address) from None
    finally:
        call.cancel()


def _print_change(message: pb.WakeStreamResponse, as_json: bool) -> None:
    if as_json:
        printing.print_json(message, one_line=True)
        return
    wake = message.next_wake
    unserved = ", ".join(f"{kind_name(work.kind)} {work.name}" for work in wake.unserved)
    at = f"{to_datetime(message.now):%H:%M:%S}  "
    printing.print_line(at, _when(wake, message.now), f"; no worker for {unserved}" if unserved else "")


def _facts(wake: pb.NextWake, now: Timestamp) -> list[tuple[str, str]]:
    unserved = [
        ("no worker for", f"{kind_name(work.kind)} {work.name}, due since {_readable(work.due_at)}")
        for work in wake.unserved
    ]
    return [
        ("next wake", _when(wake, now)),
        ("number", f"{wake.number} of replica {wake.replica_id}"),
        *unserved,
    ]


def _when(wake: pb.NextWake, now: Timestamp) -> str:
    if not wake.HasField("wake_at"):
        return "none: nothing waits"
    left = to_datetime(wake.wake_at) - to_datetime(now)
    if left.total_seconds() <= 0:
        return f"now: due since {_readable(wake.wake_at)}"
    return f"in {printing.duration(left)}, at {_readable(wake.wake_at)}"


def _readable(instant: Timestamp) -> str:
    return f"{printing.instant(to_datetime(instant))} UTC"


def _filter(kinds: list[str], names: list[str]) -> pb.WakeFilter:
    return pb.WakeFilter(kinds=map(kind_number, kinds), names=names)
