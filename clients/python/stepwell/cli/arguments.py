"""Arguments as people type them, read into values to send: JSON, labels, statuses, durations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from stepwell.durations import to_timedelta, to_words
from stepwell.hooks.info import hook_status_numbers
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.workflows.info import status_numbers

_LONGEST = timedelta(days=365)
_JSON_HELP = "JSON, or @FILE to read it from a file, or - for standard input."


def _labels(values: Sequence[str]) -> Sequence[str]:
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise typer.BadParameter(f"must be KEY=VALUE: {value!r}")
    return values


def _status(value: str) -> int:
    return _only(status_numbers, value)


def _hook_status(value: str) -> int:
    return _only(hook_status_numbers, value)


def _only(numbers: Callable[[str], Sequence[int]], value: str) -> int:
    try:
        return numbers(value)[0]
    except ValueError as error:
        raise typer.BadParameter(str(error).replace("status is", "must be", 1)) from None


def duration(value: str) -> timedelta:
    """A duration as the SDK reads it, of a year at most. A usage error, which names the option, if it is none."""
    try:
        length = to_timedelta(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if length > _LONGEST:
        raise typer.BadParameter(f"a duration of at most {to_words(_LONGEST)} is meant, not {value!r}")
    return length


def instant(value: str) -> datetime:
    """An instant in ISO 8601, with its time zone. A usage error if it is none."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise typer.BadParameter("must be an instant such as 2030-01-31T12:00:00Z") from None
    if at.tzinfo is None:
        raise typer.BadParameter("must have a time zone, such as 2030-01-31T12:00:00Z")
    return at


def _payload(value: str) -> Payload:
    text = _read(value)
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}") from None
    return Payload(json=text)


WorkflowName = Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of the workflow.")]
InstanceId = Annotated[str, typer.Argument(metavar="ID", help="Id of the instance.")]
Labels = Annotated[
    list[str],
    typer.Option("--label", "-l", metavar="KEY=VALUE", callback=_labels, help="A label; can be given several times."),
]
Statuses = Annotated[
    list[int],
    typer.Option(
        "--status", "-s", metavar="STATUS", parser=_status, help="Only this status; can be given several times."
    ),
]
HookStatuses = Annotated[
    list[int],
    typer.Option(
        "--status", "-s", metavar="STATUS", parser=_hook_status, help="Only this status; can be given several times."
    ),
]
Params = Annotated[
    Payload | None,
    typer.Option("--params", "-p", metavar="JSON", parser=_payload, help=f"Its parameters: {_JSON_HELP}"),
]
GivenPayload = Annotated[
    Payload | None, typer.Option("--payload", "-p", metavar="JSON", parser=_payload, help=f"Payload: {_JSON_HELP}")
]
Wait = Annotated[
    timedelta | None,
    typer.Option(metavar="DURATION", parser=duration, help='Wait for its end, at most so long: "30s", "5 minutes".'),
]


def labels_of(values: Sequence[str]) -> dict[str, str]:
    """The labels that were given as KEY=VALUE."""
    return {key: value for key, _, value in (text.partition("=") for text in values)}


def statuses_of(values: Sequence[int]) -> list[pb.InstanceStatus.ValueType]:
    """The statuses as the wire has them."""
    return [pb.InstanceStatus.ValueType(value) for value in values]


def _read(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{given[1:]}: {getattr(error, 'strerror', error)}") from None
    return given


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")
