"""Kinds of handlers, and their words."""

from __future__ import annotations

from typing import TypeAlias

from stepwell.v1 import workers_pb2 as pb

Kind: TypeAlias = pb.HandlerKind.ValueType

_PREFIX = "HANDLER_KIND_"


def kind_number(kind: str) -> Kind:
    """The wire's number for a kind of handler, such as "workflow". ValueError if there is no such kind."""
    try:
        return pb.HandlerKind.Value(f"{_PREFIX}{kind.upper()}")
    except ValueError:
        raise ValueError(f"there is no kind of handler {kind!r}: {', '.join(kind_names())}") from None


def kind_name(number: int) -> str:
    """The word for a kind of handler; a number that is not known stays a number."""
    value = pb.HandlerKind.DESCRIPTOR.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(_PREFIX).lower()


def kind_names() -> list[str]:
    """The words for all kinds of handlers."""
    return [kind_name(number) for number in pb.HandlerKind.values() if number]
