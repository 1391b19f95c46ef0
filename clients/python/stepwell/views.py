"""Parts of the views of all primitives: failures, instants, and the statuses that filter a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import Message

from stepwell.durations import to_datetime
from stepwell.v1 import common_pb2

S = TypeVar("S", bound=StrEnum)
N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure, as it was stored."""

    name: str
    message: str


def stored_failure(failure: common_pb2.Failure) -> Failure:
    """Convert a failure, with a name in any case."""
    return Failure(failure.name or "UNKNOWN_ERROR", failure.message)


def instant(message: Message, name: str) -> datetime | None:
    """The instant in a field of a message; None if it is not set."""
    return to_datetime(getattr(message, name)) if message.HasField(name) else None


def numbers_of(numbers: Mapping[S, N], given: str | Iterable[str] | None) -> list[N]:
    """The wire's numbers of one status or several. ValueError if a status cannot be looked for."""
    return [_number(numbers, status) for status in _several(given)]


def _several(given: str | Iterable[str] | None) -> Iterable[str]:
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"status is a status or several, not {given!r}")
    return given


def _number(numbers: Mapping[S, N], status: object) -> N:
    for known, number in numbers.items():
        if known == status:
            return number
    raise ValueError(f"status is one of {', '.join(numbers)}, not {status!r}")
