"""`stepwell namespace`: create and list namespaces."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import typer
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from stepwell.cli import options, printing
from stepwell.v1 import namespaces_pb2 as pb
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub

app = typer.Typer(help="Create and list namespaces, the borders between tenants.", no_args_is_help=True)


@app.command()
@options.on_server
def create(
    target: options.Target,
    name: Annotated[str, typer.Argument(help="Name of the namespace.")],
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Create a namespace."""
    request = pb.CreateNamespaceRequest(name=name, description=description, request_id=str(uuid4()))

    async def ask(channel: aio.Channel) -> pb.CreateNamespaceResponse:
        return await NamespaceServiceStub(channel).CreateNamespace(request, timeout=options.DEADLINE)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer.namespace)
    else:
        printing.print_line(f"created namespace {answer.namespace.name}")


@app.command("list")
@options.on_server
def list_(target: options.Target, as_json: options.AsJson = False) -> None:
    """List all namespaces."""
    found = target.call(_all)
    if as_json:
        printing.print_json(pb.ListNamespacesResponse(namespaces=found))
        return
    printing.print_table(["name", "keeps complete", "description", "created"], map(_row, found))


async def _all(channel: aio.Channel) -> list[pb.Namespace]:
    stub = NamespaceServiceStub(channel)
    found: list[pb.Namespace] = []
    token = ""
    while True:
        request = pb.ListNamespacesRequest(page_size=100, page_token=token)
        page = await stub.ListNamespaces(request, timeout=options.DEADLINE)
        found.extend(page.namespaces)
        token = page.next_page_token
        if not token:
            return found


def _row(namespace: pb.Namespace) -> list[str]:
    kept = _kept(namespace.retention.complete if namespace.retention.HasField("complete") else None)
    return [namespace.name, kept, namespace.description, f"{namespace.created_at.ToDatetime():%Y-%m-%d %H:%M}"]


def _kept(duration: Duration | None) -> str:
    return "for ever" if duration is None else f"{duration.ToTimedelta()}"
