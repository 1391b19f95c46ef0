"""Checks that hold for every message, whatever its service: made from the descriptors, so no field is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell_server.domain.errors import (
    DurationOutOfRange,
    EnumValueUnknown,
    MalformedRequest,
    TimestampOutOfRange,
)

_NANOS = 1_000_000_000
_LONGEST_SECONDS = 315_576_000_000  # what protobuf allows: about 10,000 years
_FIRST_SECOND = -62_135_596_800  # 0001-01-01
_LAST_SECOND = 253_402_300_799  # 9999-12-31


BATCHES = {
    f"stepwell.v1.{name}": "items" for name in ("CreateInstancesRequest", "SendEventsRequest", "TriggerHooksRequest")
}
"""Messages whose items are decided each by itself, and the field that has them: it is left to whoever reads them."""

Check: TypeAlias = Callable[[Any, str], None]
"""Refuses a value that cannot be, under the name that it has in the request."""


def check(message: Message, path: str = "") -> None:
    """Refuse NUL in a string, an unknown enum number and a time out of range, anywhere in the message but in the items
    of a batch."""
    checks = _checks(message.DESCRIPTOR)
    for field, value in message.ListFields():
        refuse = checks.get(field.number)
        if refuse is not None:
            refuse(value, f"{path}{field.name}")


@cache
def _checks(kind: Descriptor) -> dict[int, Check]:
    """How to check the fields of a kind of message, by their numbers; most need no check."""
    alone = BATCHES.get(kind.full_name)
    found = {field.number: _field_check(field) for field in kind.fields if field.name != alone}
    return {number: check for number, check in found.items() if check is not None}


def _field_check(field: FieldDescriptor) -> Check | None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        parts = field.message_type.fields_by_name
        return _map_check(_value_check(parts["key"]), _value_check(parts["value"]))
    check_item = _value_check(field)
    if check_item is None or not field.is_repeated:
        return check_item

    def check_items(items: Sequence[Any], name: str) -> None:
        for index, item in enumerate(items):
            check_item(item, f"{name}[{index}]")

    return check_items


def _map_check(check_key: Check | None, check_item: Check | None) -> Check:
    def check_entries(entries: Mapping[Any, Any], name: str) -> None:
        for key, item in entries.items():
            if check_key is not None:
                check_key(key, name)
            if check_item is not None:
                check_item(item, name)

    return check_entries


def _value_check(field: FieldDescriptor) -> Check | None:
    if field.enum_type is not None:
        return partial(_check_enum, frozenset(field.enum_type.values_by_number))
    if field.message_type is not None:
        return _TIMES.get(field.message_type.full_name, _check_message)
    return _check_string if field.type == FieldDescriptor.TYPE_STRING else None


def _check_string(value: str, name: str) -> None:
    if "\0" in value:
        raise MalformedRequest(f"{name} holds a NUL character", field=name)


def _check_enum(known: Set[int], value: int, name: str) -> None:
    if value not in known:
        raise EnumValueUnknown(f"{name} has a value that this server does not know", field=name, value=value)


def _check_message(value: Message, name: str) -> None:
    check(value, f"{name}.")


def _check_duration(value: Duration, name: str) -> None:
    if not (0 <= value.seconds <= _LONGEST_SECONDS and 0 <= value.nanos < _NANOS):
        raise DurationOutOfRange(f"{name} must be a duration that is not negative", field=name)


def _check_timestamp(value: Timestamp, name: str) -> None:
    if not (_FIRST_SECOND <= value.seconds <= _LAST_SECOND and 0 <= value.nanos < _NANOS):
        raise TimestampOutOfRange(f"{name} must lie in the years 1 to 9999", field=name)


_TIMES: dict[str, Check] = {
    Duration.DESCRIPTOR.full_name: _check_duration,
    Timestamp.DESCRIPTOR.full_name: _check_timestamp,
}
