"""Kinds of handlers: their words, and what a definition of any kind can tell a worker."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from stepwell.v1 import workers_pb2 as pb

Kind: TypeAlias = pb.HandlerKind.ValueType

_PREFIX = "HANDLER_KIND_"


class Definition(Protocol):
    """A handler that an app hosts under a name: a workflow, a hook, ..."""

    @property
    def kind(self) -> Kind:
        """Its kind of handler."""

    @property
    def name(self) -> str:
        """Its name, unlike that of all others of its kind in an app."""

    def to_handler(self) -> pb.Handler:
        """Its part of Hello."""


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
