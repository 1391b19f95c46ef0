"""How instances, their steps and their events are shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from stepwell.cli import printing
from stepwell.durations import to_datetime
from stepwell.hooks.info import HookStatus
from stepwell.v1 import workflows_pb2 as pb
from stepwell.workflows.info import InstanceStatus, StepStatus, StepType, instance_info, status_of, step_entry

INSTANCE_COLUMNS = ("id", "status", "run", "created", "", "labels")
HISTORY_COLUMNS = ("at", "what", "name", "status", "attempts", "")

_STYLES = {
    "complete": "green",
    "completed": "green",
    "errored": "red",
    "terminated": "red",
    "failed": "red",
    "cancelled": "red",
    "running": "cyan",
    "processing": "cyan",
    "waiting": "yellow",
    "paused": "magenta",
    "waitingForPause": "magenta",
}


def word(status: InstanceStatus | StepStatus | HookStatus) -> Text:
    """A status, in its colour."""
    return Text(status, style=_STYLES.get(status, ""))


def instance_row(instance: pb.Instance) -> list[printing.Cell]:
    """An instance in a table of INSTANCE_COLUMNS."""
    shown = instance_info(instance)
    return [
        shown.id,
        word(shown.status),
        str(shown.run_number),
        printing.instant(shown.created_at),
        _after(shown.started_at, shown.ended_at) or _until(shown.wake_at),
        _labels(instance),
    ]


def instance_facts(instance: pb.Instance) -> Iterator[tuple[str, printing.Cell]]:
    """Everything about an instance, line by line."""
    shown = instance_info(instance)
    yield "status", word(shown.status)
    yield "run", str(shown.run_number)
    if shown.labels:
        yield "labels", _labels(instance)
    yield "created", f"{printing.instant(shown.created_at)} UTC"
    if shown.started_at is not None:
        yield "started", f"{printing.instant(shown.started_at)} UTC"
    if shown.wake_at is not None:
        yield "goes on", f"{printing.instant(shown.wake_at)} UTC"
    if shown.ended_at is not None:
        after = _after(shown.started_at, shown.ended_at)
        yield "ended", f"{printing.instant(shown.ended_at)} UTC{f', {after}' if after else ''}"
    yield "params", printing.indented(instance.params)
    if instance.HasField("output"):
        yield "output", printing.indented(instance.output)
    if shown.error is not None:
        yield "error", f"{shown.error.name}: {shown.error.message}"


def end_of(instance: pb.Instance) -> str:
    """The result of an instance, on one line; nothing if it has not ended or has none."""
    match status_of(instance):
        case InstanceStatus.COMPLETE:
            return printing.payload(instance.output)
        case InstanceStatus.ERRORED:
            return printing.failure(instance.failure)
    return ""


def history_row(entry: pb.HistoryEntry) -> list[printing.Cell]:
    """A step or an event in a table of HISTORY_COLUMNS."""
    return _step_row(entry.step) if entry.HasField("step") else _event_row(entry.event)


def step_detail(step: pb.Step) -> str:
    """The result, the wait or the failure of a step."""
    if step.status == pb.STEP_STATUS_COMPLETED:
        waited = (
            "" if step.type == pb.STEP_TYPE_DO else _after(to_datetime(step.created_at), to_datetime(step.updated_at))
        )
        return "  ".join(filter(None, (waited, printing.payload(step.result))))
    parts = [printing.failure(step.failure)] if step.HasField("failure") else []
    if step.event_type and step.status == pb.STEP_STATUS_WAITING:
        parts.append(f"for {step.event_type}")
    if step.status != pb.STEP_STATUS_ERRORED:
        parts += [_until(to_datetime(step.wake_at))] if step.HasField("wake_at") else []
        parts += [f"again at {_instant(step.next_retry_at)}"] if step.HasField("next_retry_at") else []
    return ", ".join(parts)


def _step_row(step: pb.Step) -> list[printing.Cell]:
    shown = step_entry(step)
    return [
        printing.instant(shown.created_at),
        shown.type,
        shown.name,
        word(shown.status),
        _attempts(step) if shown.type is StepType.DO else "",
        step_detail(step),
    ]


def _event_row(event: pb.Event) -> list[printing.Cell]:
    status, taker = ("taken", f"by {event.consumed_by_step}") if event.HasField("delivered_at") else ("kept", "")
    detail = "  ".join(filter(None, (taker, printing.payload(event.payload))))
    return [_instant(event.created_at), "event", event.type, status, "", detail]


def _after(start: datetime | None, end: datetime | None) -> str:
    took = printing.span(start, end)
    return f"after {took}" if took else ""


def _until(at: datetime | None) -> str:
    return "" if at is None else f"until {printing.instant(at)}"


def _attempts(step: pb.Step) -> str:
    return f"{step.attempts} of {step.max_attempts}" if step.HasField("max_attempts") else str(step.attempts)


def _labels(instance: pb.Instance) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(instance.labels.items()))


def _instant(stamp: Timestamp) -> str:
    return printing.instant(to_datetime(stamp))
