"""Requests by their descriptors: every field that can repeat, and messages that are full of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from stepwell.v1 import (
    clock_pb2,
    dispatchers_pb2,
    hooks_pb2,
    namespaces_pb2,
    server_pb2,
    transactions_pb2,
    workers_pb2,
    workflows_pb2,
)
from tests.support import raw

FILES: list[Any] = [
    clock_pb2,
    dispatchers_pb2,
    hooks_pb2,
    namespaces_pb2,
    server_pb2,
    transactions_pb2,
    workers_pb2,
    workflows_pb2,
]
METHODS: list[Any] = [
    method for file in FILES for service in file.DESCRIPTOR.services_by_name.values() for method in service.methods
]
Path = tuple[FieldDescriptor, ...]


def repeated(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """The ways to every field that can repeat, from the message down."""
    for field in kind.fields:
        if field.is_repeated:
            yield (*path, field)
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry:
            yield from repeated(inner, (*path, field))


def name_of(kind: Descriptor, path: Path) -> str:
    """How people call the field."""
    return f"{kind.name}.{'.'.join(one.name for one in path)}"


def elements(field: FieldDescriptor, count: int) -> bytes:
    """So many elements of a field, as little as one can be; the keys of a map differ."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return b"".join(raw.string_field(field.number, raw.string_field(1, b"%x" % one)) for one in range(count))
    is_number = inner is None and field.type != FieldDescriptor.TYPE_STRING
    return (raw.varint_field(field.number, 1) if is_number else raw.string_field(field.number, b"")) * count


def message(path: Path, count: int) -> bytes:
    """A message with so many elements in the field, and nothing else."""
    *outer, field = path
    body = elements(field, count)
    for one in reversed(outer):
        body = raw.string_field(one.number, body)
    return body
