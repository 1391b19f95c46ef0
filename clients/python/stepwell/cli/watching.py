"""`stepwell workflow watch`: an instance as it goes on, from the stream."""

from __future__ import annotations

from typing import Annotated

import typer

from stepwell.cli import arguments, instances, options, presence, printing
from stepwell.client.client import Client
from stepwell.durations import to_datetime
from stepwell.v1 import workflows_pb2 as pb
from stepwell.workflows.handle import Instance
from stepwell.workflows.info import InstanceStatus, status_of, step_entry

INTERRUPTED = 130

Steps = Annotated[bool, typer.Option(help="Also show its steps.")]


@options.in_namespace
def watch(
    target: options.Target,
    workflow: arguments.WorkflowName,
    id: arguments.InstanceId,
    steps: Steps = True,
    as_json: options.AsJson = False,
) -> None:
    """Follow an instance until it ends. The exit code is 1 if it does not complete. With --json, a line per change."""
    try:
        status = target.use(lambda client: _follow(client, workflow, id, steps=steps, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if status is not InstanceStatus.COMPLETE:
        raise typer.Exit(1)


async def _follow(client: Client, workflow: str, id: str, *, steps: bool, as_json: bool) -> InstanceStatus:
    # Asked first, because the stream would wait for a server that is not there.
    await Instance(client, workflow, id).fetch(view=pb.INSTANCE_VIEW_BASIC)
    async with presence.told(client):
        return await _show(client, workflow, id, steps=steps, as_json=as_json)


async def _show(client: Client, workflow: str, id: str, *, steps: bool, as_json: bool) -> InstanceStatus:
    """Print every change of the instance and return how it ended."""
    shown = ""
    with client.follow(workflow, id, steps=steps) as follower:
        while True:
            instance, changed = await follower.next()
            if as_json:
                printing.print_json(pb.InstanceChange(instance=instance, steps=changed), one_line=True)
            else:
                shown = _print_change(instance, changed, shown)
            if (status := status_of(instance)).is_terminal:
                return status


def _print_change(instance: pb.Instance, changed: list[pb.Step], shown: str) -> str:
    """Print what is new, steps first, and return what was printed of the instance."""
    for step in sorted(changed, key=lambda step: step.updated_at.ToNanoseconds()):
        _print_step(step)
    status = status_of(instance)
    news = f"{instance.run_number} {status}"
    if news != shown:
        at = f"{to_datetime(instance.updated_at):%H:%M:%S}  "
        named = f"{instance.workflow} {instance.instance_id} is "
        run = f" (run {instance.run_number})" if instance.run_number else ""
        result = instances.end_of(instance)
        printing.print_line(at, named, instances.word(status), run, f": {result}" if result else "")
    return news


def _print_step(step: pb.Step) -> None:
    entry = step_entry(step)
    at = f"{to_datetime(step.updated_at):%H:%M:%S}    "
    detail = instances.step_detail(step)
    printing.print_line(at, f"{entry.type} {entry.name!r} ", instances.word(entry.status), f"  {detail}".rstrip())
