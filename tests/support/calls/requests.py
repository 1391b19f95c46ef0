"""Requests by their descriptors: every field that can repeat, every payload, and messages that are full of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

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
from stepwell_server.api.edge import bounds
from stepwell_server.domain.values.limits import Limits
from tests.support.calls import raw

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
LARGEST = 4 * 1024 * 1024 - 64 * 1024
SESSION = "0123456789abcdef" * 2
GIVEN: dict[str, Any] = {
    "workflow": "order",
    "type": "go",
    "session_id": SESSION,
    "worker_id": "bench",
    "task_id": 1,
    "fence": 1,
    "attempt": 1,
    "protocol_version": 1,
    "kind": workers_pb2.HANDLER_KIND_WORKFLOW,
    "seconds": 10,
    "begun": True,
    "non_retryable": True,
}
"""Values of fields, by their names. Others have none, but for names and ids that differ."""
NO_LEASE = workers_pb2.HeldTask(task_id=1, fence=1)
NAMED = ("name", "instance_id", "hook_id", "request_id")


def repeated(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """The ways to every field that can repeat, from the message down."""
    for field in kind.fields:
        if field.is_repeated:
            yield (*path, field)
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry:
            yield from repeated(inner, (*path, field))


def payloads(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """The ways to every payload."""
    for one in kind.fields:
        inner = one.message_type
        if inner is not None and inner.full_name == "stepwell.v1.Payload":
            yield (*path, one)
        elif inner is not None and not inner.GetOptions().map_entry:
            yield from payloads(inner, (*path, one))


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


def counts(path: Path, *, least: bool, values: int) -> list[int]:
    """How often each field on the way can be there, if all limits are kept, and one on the values in all.

    Of the least elements there is room for more, and the inner ones come first; of others the outer ones.
    """
    most = [bounds.most(one, Limits()) if one.is_repeated else 1 for one in path]
    room = values // (2 if least else 13)
    for index in reversed(range(len(most))) if least else range(len(most)):
        most[index] = max(1, min(most[index], room))
        room //= most[index]
    return most


def full(
    kind: Descriptor, path: Path, *, least: bool = False, number: int = 1, values: int = Limits().message_values
) -> Any:
    """The message with as many elements in the field as all limits let it have, as little or as much as they can be."""
    whole: Any = GetMessageClass(kind)()
    if not least:
        _fill(whole, path[0], number)
    _add(whole, path, counts(path, least=least, values=values), number, least)
    return whole


def _add(message: Any, path: Path, most: list[int], number: int, least: bool) -> None:
    field, *rest = path
    inner = field.message_type
    for index in range(most[0]):
        own = number + index
        if inner is not None and inner.GetOptions().map_entry:
            getattr(message, field.name)[f"k{own}"] = "" if least else "v" * 50
        elif inner is None:
            getattr(message, field.name).append(f"n{own}" if field.type == FieldDescriptor.TYPE_STRING else 1)
        else:
            part = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
            part.SetInParent()
            if not least or inner.name == "WorkerFrame":
                _fill(part, rest[0] if rest else None, own)
            if rest:
                _add(part, tuple(rest), most[1:], own * most[1], least)


def _fill(message: Any, but: FieldDescriptor | None, number: int) -> None:
    """Give a message values for all that can be once, but for one field, which comes by itself."""
    for field in message.DESCRIPTOR.fields:
        others = () if field.containing_oneof is None else field.containing_oneof.fields
        if field.is_repeated or field is but or but in others or (others and field is not others[-1]):
            continue
        if field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), None, number)
        elif field.name in NAMED:
            setattr(message, field.name, f"n{number}")
        elif field.name == "number":
            setattr(message, field.name, number)
        elif field.name in GIVEN:
            setattr(message, field.name, GIVEN[field.name])


def with_payload(
    kind: Descriptor, path: Path, content: str | bytes, times: int = 1, lease: Any = NO_LEASE, number: int = 1
) -> Any:
    """The message with a payload, so many times if it can be there often. What is made has names by the number."""
    whole: Any = GetMessageClass(kind)()
    if kind.name == "ConnectRequest":
        whole.frames.add(hello=hello(lease))
    for index in range(times):
        inside = _named(whole, lease, number + index, index + 1)
        for one in path:
            inside = getattr(inside, one.name).add() if one.is_repeated else getattr(inside, one.name)
            inside = _named(inside, lease, number + index, index + 1)
        setattr(inside, "json" if isinstance(content, str) else "binary", content)
    return whole


def _named(part: Any, lease: Any, number: int, place: int) -> Any:
    """Give a part its names: what is made has new ones, what is sent goes to what is there."""
    name = f"n{number}"
    instance_id = name if part.DESCRIPTOR.name.startswith("Create") else "one"
    given = GIVEN | {"name": name, "request_id": name, "instance_id": instance_id, "number": place}
    given |= {"task_id": lease.task_id, "fence": lease.fence}
    for field in part.DESCRIPTOR.fields:
        if field.name in given and field.message_type is None:
            setattr(part, field.name, given[field.name])
    return part


def hello(lease: Any = None) -> workers_pb2.Hello:
    """A worker that hosts what the messages name, and holds a lease."""
    hosted = [workers_pb2.Handler(kind=workers_pb2.HANDLER_KIND_WORKFLOW, name="order")]
    held = [lease] if lease else []
    return workers_pb2.Hello(worker_id="bench", session_id=SESSION, protocol_version=1, handlers=hosted, held=held)
