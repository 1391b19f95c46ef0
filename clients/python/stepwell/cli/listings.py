"""`stepwell workflow list` and `history`, and `stepwell workers`: what there is."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from google.protobuf.message import Message
from grpc import aio

from stepwell.calls import PAGE
from stepwell.cli import arguments, instances, options, printing
from stepwell.durations import to_datetime
from stepwell.v1 import frames_pb2, workers_pb2, workers_pb2_grpc
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.frames_pb2 import HANDLER_KIND_HOOK, HANDLER_KIND_WORKFLOW
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub

M = TypeVar("M", bound=Message)

Limit = Annotated[int, typer.Option(min=1, help="Show at most so many.")]


@options.in_namespace
def list_(
    target: options.Target,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of a workflow.")] = "",
    status: arguments.Statuses = [],  # noqa: B006 - typer copies it
    label: arguments.Labels = [],  # noqa: B006 - typer copies it
    limit: Limit = 25,
    as_json: options.AsJson = False,
) -> None:
    """List the workflows that workers registered or, with a WORKFLOW, its instances, newest first."""
    if workflow:
        request = pb.ListInstancesRequest(
            namespace=target.namespace,
            workflow=workflow,
            statuses=arguments.statuses_of(status),
            labels=arguments.labels_of(label),
        )
        _list_instances(target, request, limit, as_json)
    elif status or label:
        raise typer.BadParameter("--status and --label choose among the instances of a WORKFLOW: name one")
    else:
        _list_workflows(target, limit, as_json)


@options.in_namespace
def history(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: arguments.InstanceId,
    run: Annotated[int | None, typer.Option(min=0, help="Number of the run. Default: the current one.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the steps and events of a run, oldest first."""
    request = pb.GetHistoryRequest(namespace=target.namespace, workflow=workflow, instance_id=id, run_number=run)

    async def ask(channel: aio.Channel) -> pb.GetHistoryResponse:
        stub = WorkflowServiceStub(channel)

        async def page(request: pb.GetHistoryRequest, **options: Any) -> pb.GetHistoryResponse:
            answer = await stub.GetHistory(request, **options)
            request.run_number = answer.run_number  # a restart meanwhile must not mix two runs
            return answer

        return await paged(page, request, "entries", sys.maxsize)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    title = f"{workflow} {id}, run {answer.run_number}"
    printing.print_table(instances.HISTORY_COLUMNS, map(instances.history_row, answer.entries), title=title)


@options.in_namespace
def workers(target: options.Target, limit: Limit = 100, as_json: options.AsJson = False) -> None:
    """List the workers that are connected, and what they run."""
    request = workers_pb2.ListWorkersRequest(namespace=target.namespace)

    async def ask(channel: aio.Channel) -> workers_pb2.ListWorkersResponse:
        return await paged(workers_pb2_grpc.WorkerServiceStub(channel).ListWorkers, request, "workers", limit)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    columns = ["worker", "sdk", "connected", "workflows", "hooks", "holds"]
    printing.print_table(columns, map(_worker_row, answer.workers))
    say_if_more(bool(answer.next_page_token))


def _list_instances(target: options.Target, request: pb.ListInstancesRequest, limit: int, as_json: bool) -> None:
    async def ask(channel: aio.Channel) -> pb.ListInstancesResponse:
        return await paged(WorkflowServiceStub(channel).ListInstances, request, "instances", limit)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    printing.print_table(instances.INSTANCE_COLUMNS, map(instances.instance_row, answer.instances))
    say_if_more(bool(answer.next_page_token))


def _list_workflows(target: options.Target, limit: int, as_json: bool) -> None:
    request = pb.ListWorkflowsRequest(namespace=target.namespace)

    async def ask(channel: aio.Channel) -> pb.ListWorkflowsResponse:
        return await paged(WorkflowServiceStub(channel).ListWorkflows, request, "workflows", limit)

    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    printing.print_table(["workflow", "workers", "description", "registered"], map(_workflow_row, answer.workflows))
    say_if_more(bool(answer.next_page_token))


async def paged(call: Callable[..., Awaitable[M]], request: Any, items: str, limit: int) -> M:
    """Up to `limit` items of a list, page after page, as one answer."""
    request.page_size = min(limit, PAGE)
    found: Any = await call(request, timeout=options.DEADLINE)
    while found.next_page_token and (left := limit - len(getattr(found, items))) > 0:
        request.page_token, request.page_size = found.next_page_token, min(left, PAGE)
        found.ClearField("next_page_token")
        found.MergeFrom(await call(request, timeout=options.DEADLINE))
    answer: M = found
    return answer


def _workflow_row(workflow: pb.Workflow) -> list[str]:
    registered = printing.instant(to_datetime(workflow.created_at))
    return [workflow.name, str(workflow.worker_count), workflow.description, registered]


def _worker_row(worker: workers_pb2.Worker) -> list[str]:
    workflows, hooks = (_hosted(worker, kind) for kind in (HANDLER_KIND_WORKFLOW, HANDLER_KIND_HOOK))
    held = " ".join(f"{task.handler.name}/{task.key}" for task in worker.tasks)
    holds = printing.shortened(f"{worker.task_count} {held}".strip())
    return [worker.worker_id, worker.sdk, printing.instant(to_datetime(worker.connected_at)), workflows, hooks, holds]


def _hosted(worker: workers_pb2.Worker, kind: frames_pb2.HandlerKind.ValueType) -> str:
    return " ".join(handler.name for handler in worker.handlers if handler.kind == kind)


def say_if_more(there_are: bool) -> None:
    """Tell that a list was cut off, where that does not mix with the list."""
    if there_are:
        print("there are more: raise --limit", file=sys.stderr)
