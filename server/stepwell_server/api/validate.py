"""Checks that hold for every message, whatever its service: made from the descriptors, so no field is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def check(message: Message, path: str = "") -> None:
    """Refuse NUL in a string, an unknown enum number and a time out of range, anywhere in the message."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _check_map(field.message_type, value, name)
        elif field.is_repeated:
            for index, item in enumerate(value):
                _check_value(field, item, f"{name}[{index}]")
        else:
            _check_value(field, value, name)


def _check_map(entry: Descriptor, value: Mapping[Any, Any], name: str) -> None:
    fields = entry.fields_by_name
    for key, item in value.items():
        _check_value(fields["key"], key, name)
        _check_value(fields["value"], item, name)


def _check_value(field: FieldDescriptor, value: Any, name: str) -> None:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            if "\0" in value:
                raise MalformedRequest(f"{name} holds a NUL character", field=name)
        case FieldDescriptor.TYPE_ENUM:
            if field.enum_type is not None and value not in field.enum_type.values_by_number:
                raise EnumValueUnknown(f"{name} has a value that this server does not know", field=name, value=value)
        case FieldDescriptor.TYPE_MESSAGE:
            _check_message(value, name)


def _check_message(value: Message, name: str) -> None:
    if isinstance(value, Duration):
        if not (0 <= value.seconds <= _LONGEST_SECONDS and 0 <= value.nanos < _NANOS):
            raise DurationOutOfRange(f"{name} must be a duration that is not negative", field=name)
    elif isinstance(value, Timestamp):
        if not (_FIRST_SECOND <= value.seconds <= _LAST_SECOND and 0 <= value.nanos < _NANOS):
            raise TimestampOutOfRange(f"{name} must lie in the years 1 to 9999", field=name)
    else:
        check(value, f"{name}.")
