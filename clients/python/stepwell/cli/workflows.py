"""`stepwell workflow`: start, find, steer and follow instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from uuid import uuid4

import typer
from google.protobuf.message import Message
from grpc import aio

from stepwell.cli import arguments, instances, listings, options, printing, watching
from stepwell.client.client import Client
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.workflows.info import InstanceStatus, status_of

if TYPE_CHECKING:
    from stepwell.v1.workflows_pb2_grpc import WorkflowServiceAsyncStub

Method: TypeAlias = Callable[["WorkflowServiceAsyncStub"], Callable[..., Awaitable[Any]]]
"""The call of a stub that gives an order."""

_VERBS: tuple[tuple[str, Callable[..., Message], Method, str], ...] = (
    (
        "pause",
        pb.PauseInstanceRequest,
        lambda stub: stub.PauseInstance,
        "Stop an instance: at once, or at the next step boundary if it is running.",
    ),
    ("resume", pb.ResumeInstanceRequest, lambda stub: stub.ResumeInstance, "Let a paused instance go on."),
    ("terminate", pb.TerminateInstanceRequest, lambda stub: stub.TerminateInstance, "End an instance for good."),
)

app = typer.Typer(help="Start, find, steer and follow instances of workflows.", no_args_is_help=True)
app.command("list")(listings.list_)
app.command("watch")(watching.watch)
app.command("history")(listings.history)


@app.command()
@options.in_namespace
def create(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: Annotated[str, typer.Option(metavar="ID", help="Id of the instance. Default: a random one.")] = "",
    params: arguments.Params = None,
    label: arguments.Labels = [],  # noqa: B006 - typer copies it
    wait: arguments.Wait = None,
    as_json: options.AsJson = False,
) -> None:
    """Start an instance. With --wait, show how it ended; the exit code is 1 if it did not complete."""
    request = pb.CreateInstanceRequest(
        namespace=target.namespace,
        workflow=workflow,
        instance_id=id,
        params=params,
        labels=arguments.labels_of(label),
        request_id=uuid4().hex,
    )

    async def ask(client: Client) -> pb.Instance:
        answer = await client.call(client.stub(WorkflowServiceStub).CreateInstance, request, options.DEADLINE)
        if wait is None:
            return answer.instance
        say_created(answer.instance)  # before it waits: a user who gives up can come back to it
        return await _ended(client, answer.instance, wait)

    def say_created(instance: pb.Instance) -> None:
        say = printing.print_note if as_json else printing.print_line
        say(f"created {_named(instance)}")

    instance = target.use(ask)
    if wait is not None or as_json:
        _show(instance, as_json)
    else:
        say_created(instance)
    if wait is not None:
        _exit_by(instance, wait)


@app.command()
@options.in_namespace
def get(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: arguments.InstanceId,
    as_json: options.AsJson = False,
) -> None:
    """Show an instance with its parameters and what came out of it."""
    request = pb.GetInstanceRequest(namespace=target.namespace, workflow=workflow, instance_id=id)

    async def ask(channel: aio.Channel) -> pb.GetInstanceResponse:
        return await WorkflowServiceStub(channel).GetInstance(request, timeout=options.DEADLINE)

    _show(target.call(ask).instance, as_json)


@app.command("send-event")
@options.in_namespace
def send_event(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: arguments.InstanceId,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Type of the event, which a step waits for.")],
    payload: arguments.GivenPayload = None,
    as_json: options.AsJson = False,
) -> None:
    """Send an event to an instance, which keeps it until a step waits for its type."""
    request = pb.SendEventRequest(
        namespace=target.namespace,
        workflow=workflow,
        instance_id=id,
        type=type,
        payload=payload,
        request_id=uuid4().hex,
    )

    async def ask(channel: aio.Channel) -> pb.SendEventResponse:
        return await WorkflowServiceStub(channel).SendEvent(request, timeout=options.DEADLINE)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
    else:
        printing.print_line(f"sent {type} to {workflow} {id}")


def _verb(request: Callable[..., Message], method: Method) -> Callable[..., None]:
    """The command that gives an instance an order."""

    @options.in_namespace
    def steer(
        target: options.Target,
        workflow: arguments.WorkflowName,
        id: arguments.InstanceId,
        as_json: options.AsJson = False,
    ) -> None:
        _steer(target, method, request(**_naming(target, workflow, id)), as_json)

    return steer


for verb, request, method, help in _VERBS:
    app.command(verb, help=help)(_verb(request, method))


@app.command()
@options.in_namespace
def restart(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: arguments.InstanceId,
    from_step: Annotated[str, typer.Option(metavar="NAME", help="Keep the results of the steps before this one.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Begin a new run with the same parameters. Earlier runs stay readable."""
    request = pb.RestartInstanceRequest(**_naming(target, workflow, id), from_step=from_step)
    _steer(target, lambda stub: stub.RestartInstance, request, as_json)


def _naming(target: options.Target, workflow: str, id: str) -> dict[str, str]:
    return {"namespace": target.namespace, "workflow": workflow, "instance_id": id, "request_id": uuid4().hex}


def _steer(target: options.Target, method: Method, request: Message, as_json: bool) -> None:
    """Give an order that is answered with the instance, and show what became of it."""

    async def ask(channel: aio.Channel) -> pb.Instance:
        answer = await method(WorkflowServiceStub(channel))(request, timeout=options.DEADLINE)
        instance: pb.Instance = answer.instance
        return instance

    instance = target.call(ask)
    if as_json:
        printing.print_json(instance)
    else:
        run = f" (run {instance.run_number})" if instance.run_number else ""
        printing.print_line(f"{_named(instance)} is ", instances.word(status_of(instance)), run)


async def _ended(client: Client, instance: pb.Instance, wait: timedelta) -> pb.Instance:
    """The instance when it has ended or the time is over."""
    with (
        suppress(TimeoutError),
        client.follow(instance.workflow, instance.instance_id) as follower,
    ):
        async with asyncio.timeout(wait.total_seconds()):
            while not status_of(instance).is_terminal:
                instance, _ = await follower.next()
    return instance


def _show(instance: pb.Instance, as_json: bool) -> None:
    if as_json:
        printing.print_json(instance)
    else:
        printing.print_table(["", ""], instances.instance_facts(instance), title=_named(instance))


def _exit_by(instance: pb.Instance, waited: timedelta) -> None:
    status = status_of(instance)
    if not status.is_terminal:
        printing.print_note(f"{_named(instance)} has not ended within {printing.duration(waited)}")
    if status is not InstanceStatus.COMPLETE:
        raise typer.Exit(1)


def _named(instance: pb.Instance) -> str:
    return f"{instance.workflow} {instance.instance_id}"
