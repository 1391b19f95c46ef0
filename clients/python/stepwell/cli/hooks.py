"""`stepwell hook`: trigger, find and steer hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from grpc import aio

from stepwell.cli import arguments, instances, listings, options, printing, targets
from stepwell.durations import to_timestamp
from stepwell.errors import refusal_of
from stepwell.hooks.info import HookInfo, hook_info
from stepwell.retry import Retry
from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.hooks_pb2_grpc import HookServiceStub

if TYPE_CHECKING:
    from stepwell.v1.hooks_pb2_grpc import HookServiceAsyncStub

app = typer.Typer(help="Trigger, find and steer hooks, and say which webhooks they go to.", no_args_is_help=True)
app.add_typer(targets.app, name="target")

HookId = Annotated[str, typer.Argument(metavar="ID", help="Id of the hook.")]
At = Annotated[
    datetime | None,
    typer.Option("--at", metavar="INSTANT", parser=arguments.instant, help="Not before: 2030-01-31T12:00:00Z."),
]
MaxAttempts = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="How often it is executed at most.")]
Delay = Annotated[
    timedelta | None,
    typer.Option(metavar="DURATION", parser=arguments.duration, help='Wait before the second execution: "5s".'),
]

_COLUMNS = ("id", "name", "status", "attempts", "created", "")


@app.command()
@options.in_namespace
def trigger(
    target: options.Target,
    name: targets.HookName,
    payload: arguments.GivenPayload = None,
    id: Annotated[str, typer.Option(metavar="ID", help="Id of the hook. Default: a random one.")] = "",
    at: At = None,
    max_attempts: MaxAttempts = None,
    delay: Delay = None,
    as_json: options.AsJson = False,
) -> None:
    """Store a hook, to be executed at once or at a time."""
    item = pb.TriggerHooksItem(
        name=name,
        hook_id=id,
        payload=payload,
        process_at=None if at is None else to_timestamp(at),
        retry=Retry(max_attempts=max_attempts, delay=delay).to_policy(),
        request_id=uuid4().hex,
    )

    async def ask(channel: aio.Channel) -> pb.Hook:
        request = pb.TriggerHooksRequest(namespace=target.namespace, items=[item])
        answer = await HookServiceStub(channel).TriggerHooks(request, timeout=options.DEADLINE)
        if answer.results[0].HasField("error"):
            raise refusal_of(answer.results[0].error)
        return answer.results[0].hook

    hook = target.call(ask)
    if as_json:
        printing.print_json(hook)
    else:
        printing.print_line(f"triggered {_named(hook)}")


@app.command()
@options.in_namespace
def get(target: options.Target, id: HookId, as_json: options.AsJson = False) -> None:
    """Show a hook with its payload, and how its executions went."""
    request = pb.GetHookRequest(namespace=target.namespace, hook_id=id)

    async def ask(channel: aio.Channel) -> pb.GetHookResponse:
        return await HookServiceStub(channel).GetHook(request, timeout=options.DEADLINE)

    hook = target.call(ask).hook
    if as_json:
        printing.print_json(hook)
    else:
        printing.print_table(["", ""], _facts(hook), title=_named(hook))


@app.command("list")
@options.in_namespace
def list_(
    target: options.Target,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only hooks of this name.")] = "",
    status: arguments.HookStatuses = [],  # noqa: B006 - typer copies it
    limit: listings.Limit = 25,
    as_json: options.AsJson = False,
) -> None:
    """List hooks, newest first."""
    statuses = [pb.HookStatus.ValueType(value) for value in status]
    request = pb.ListHooksRequest(namespace=target.namespace, name=name, statuses=statuses)

    async def ask(channel: aio.Channel) -> pb.ListHooksResponse:
        return await listings.paged(HookServiceStub(channel).ListHooks, request, "hooks", limit)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    printing.print_table(_COLUMNS, map(_row, answer.hooks))
    listings.say_if_more(bool(answer.next_page_token))


@app.command()
@options.in_namespace
def retry(target: options.Target, id: HookId, as_json: options.AsJson = False) -> None:
    """Execute a hook at once: one that failed or was cancelled anew, one that waits without waiting further."""
    request = pb.RetryHookRequest(namespace=target.namespace, hook_id=id, request_id=uuid4().hex)
    _steer(target, lambda stub: stub.RetryHook(request, timeout=options.DEADLINE), as_json)


@app.command()
@options.in_namespace
def cancel(target: options.Target, id: HookId, as_json: options.AsJson = False) -> None:
    """End a hook that has not ended."""
    request = pb.CancelHookRequest(namespace=target.namespace, hook_id=id, request_id=uuid4().hex)
    _steer(target, lambda stub: stub.CancelHook(request, timeout=options.DEADLINE), as_json)


def _steer(target: options.Target, order: Callable[[HookServiceAsyncStub], Awaitable[Any]], as_json: bool) -> None:
    """Give an order that is answered with the hook, and show what became of it."""

    async def ask(channel: aio.Channel) -> pb.Hook:
        hook: pb.Hook = (await order(HookServiceStub(channel))).hook
        return hook

    hook = target.call(ask)
    if as_json:
        printing.print_json(hook)
    else:
        printing.print_line(f"{_named(hook)} is ", instances.word(hook_info(hook).status))


def _row(hook: pb.Hook) -> list[printing.Cell]:
    shown = hook_info(hook)
    failure = printing.failure(hook.failure) if hook.HasField("failure") else ""
    again = f"not before {printing.instant(shown.next_attempt_at)}" if shown.next_attempt_at else ""
    created = printing.instant(shown.created_at)
    detail = ", ".join(filter(None, (failure, again)))
    return [shown.id, shown.name, instances.word(shown.status), _attempts(shown), created, detail]


def _facts(hook: pb.Hook) -> Iterator[tuple[str, printing.Cell]]:
    shown = hook_info(hook)
    yield "status", instances.word(shown.status)
    yield "attempts", _attempts(shown)
    yield "key", shown.idempotency_key
    times = {
        "created": shown.created_at,
        "not before": shown.process_at,
        "last executed": shown.last_attempt_at,
        "next execution": shown.next_attempt_at,
        "ended": shown.ended_at,
    }
    for what, at in times.items():
        if at is not None:
            yield what, f"{printing.instant(at)} UTC"
    yield "payload", printing.indented(hook.payload)
    if hook.HasField("failure"):
        yield "error", printing.failure(hook.failure)


def _attempts(hook: HookInfo) -> str:
    return f"{hook.attempts} of {hook.max_attempts or 'any number'}"


def _named(hook: pb.Hook) -> str:
    return f"{hook.name} {hook.hook_id}"
