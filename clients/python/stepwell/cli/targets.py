"""`stepwell hook target`: webhooks that hooks of a name go to."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import typer
from grpc import aio
from rich.text import Text

from stepwell.cli import listings, options, printing
from stepwell.durations import to_datetime
from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.hooks_pb2_grpc import HookServiceStub

app = typer.Typer(help="Webhooks that hooks of a name go to.", no_args_is_help=True)

HookName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the hook.")]


@app.command()
@options.in_namespace
def put(
    target: options.Target,
    name: HookName,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to POST: an https URL.")],
    secret: Annotated[
        list[str], typer.Option(metavar="SECRET", help="To sign with: whsec_ and base64; a second one to rotate.")
    ] = [],  # noqa: B006 - typer copies it
    as_json: options.AsJson = False,
) -> None:
    """Send hooks of a name to a webhook from now on, or enable it again. A secret that is made is shown, this once."""
    request = pb.PutHookTargetRequest(
        namespace=target.namespace, name=name, url=url, secrets=secret, request_id=uuid4().hex
    )

    async def ask(channel: aio.Channel) -> pb.PutHookTargetResponse:
        return await HookServiceStub(channel).PutHookTarget(request, timeout=options.DEADLINE)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    told = ", signed with a new secret:" if answer.secrets else ""
    printing.print_line(f"{answer.target.name} goes to {answer.target.url}{told}")
    for new_secret in answer.secrets:
        printing.print_line(new_secret)


@app.command("list")
@options.in_namespace
def list_(target: options.Target, limit: listings.Limit = 25, as_json: options.AsJson = False) -> None:
    """List the webhooks of a namespace by the name of their hooks."""
    request = pb.ListHookTargetsRequest(namespace=target.namespace)

    async def ask(channel: aio.Channel) -> pb.ListHookTargetsResponse:
        return await listings.paged(HookServiceStub(channel).ListHookTargets, request, "targets", limit)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    printing.print_table(["name", "url", "", "changed"], map(_row, answer.targets))
    listings.say_if_more(bool(answer.next_page_token))


@app.command()
@options.in_namespace
def delete(target: options.Target, name: HookName) -> None:
    """Send hooks of a name to no webhook any more."""
    request = pb.DeleteHookTargetRequest(namespace=target.namespace, name=name, request_id=uuid4().hex)

    async def ask(channel: aio.Channel) -> pb.DeleteHookTargetResponse:
        return await HookServiceStub(channel).DeleteHookTarget(request, timeout=options.DEADLINE)

    target.call(ask)
    printing.print_line(f"deleted the target of {name}")


def _row(target: pb.HookTarget) -> list[printing.Cell]:
    state = Text("disabled", style="red") if target.disabled else ""
    return [target.name, target.url, state, printing.instant(to_datetime(target.updated_at))]
