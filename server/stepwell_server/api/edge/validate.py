"""Checks that hold for every message, whatever its service: made from the descriptors, so no field is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell_server.api.edge import bounds
from stepwell_server.api.edge.bounds import FIELD_COST
from stepwell_server.domain.values.errors import (
    DurationOutOfRange,
    EnumValueUnknown,
    MalformedRequest,
    TimestampOutOfRange,
)
from stepwell_server.domain.values.limits import Limits

_NANOS = 1_000_000_000
_LONGEST_SECONDS = 315_576_000_000  # what protobuf allows: about 10,000 years
_FIRST_SECOND = -62_135_596_800  # 0001-01-01
_LAST_SECOND = 253_402_300_799  # 9999-12-31

Check: TypeAlias = Callable[[Any, str], Iterable[int] | None]
"""Refuses an impossible value under its name in the request: at once, or in parts where it is large."""


class Validator:
    """The checks, with limits that operators can change."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._checks: dict[str, dict[int, Check]] = {}

    def check(self, message: Message, path: str = "") -> None:
        """Refuse too many elements, NUL in a string, an unknown enum number and a time out of range.

        Items of a batch are only counted. Nothing is looked into before it is counted.
        """
        for _ in self.parts(message, path):
            pass

    def parts(self, message: Message, path: str = "") -> Iterator[int]:
        """The same check, one message of all that are in it at a time. Yields after each how much work it was."""
        checks = self._checks_of(message.DESCRIPTOR)
        fields = message.ListFields()
        yield FIELD_COST * (1 + len(fields))
        for field, value in fields:
            refuse = checks.get(field.number)
            if refuse is not None:
                yield from refuse(value, f"{path}{field.name}") or ()

    def count(self, message: Message) -> None:
        """Refuse too many elements in a field of the message itself."""
        for field, value in message.ListFields():
            if field.is_repeated:
                bounds.check_length(value, field, field.name, self._limits)

    def _checks_of(self, kind: Any) -> dict[int, Check]:
        """How to check the fields of a kind of message, by their numbers; some need no check."""
        name = kind.full_name
        if name not in self._checks:
            found = {field.number: self._field_check(field) for field in kind.fields}
            self._checks[name] = {number: check for number, check in found.items() if check is not None}
        return self._checks[name]

    def _field_check(self, field: FieldDescriptor) -> Check | None:
        if not field.is_repeated:
            return self._value_check(field)
        check_items = None if is_batch(field) else self._items_check(field)

        def check_elements(elements: Sequence[Any], name: str) -> Iterable[int] | None:
            bounds.check_length(elements, field, name, self._limits)
            return None if check_items is None else check_items(elements, name)

        return check_elements

    def _items_check(self, field: FieldDescriptor) -> Check | None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            parts = field.message_type.fields_by_name
            return _map_check(self._value_check(parts["key"]), self._value_check(parts["value"]))
        check_item = self._value_check(field)
        return None if check_item is None else _list_check(check_item)

    def _value_check(self, field: FieldDescriptor) -> Check | None:
        if field.enum_type is not None:
            return partial(_check_enum, frozenset(field.enum_type.values_by_number))
        if field.message_type is not None:
            return _TIMES.get(field.message_type.full_name, self._check_message)
        return _check_string if field.type == FieldDescriptor.TYPE_STRING else None

    def _check_message(self, value: Message, name: str) -> Iterator[int]:
        return self.parts(value, f"{name}.")


def is_batch(field: FieldDescriptor) -> bool:
    """Whether the items of a request are decided each by itself, with a result for each: their reader checks them."""
    request = field.containing_type
    if request is None or not request.name.endswith("Request") or field.name != "items":
        return False
    response = request.file.message_types_by_name.get(f"{request.name.removesuffix('Request')}Response")
    return response is not None and "results" in response.fields_by_name


def _list_check(check_item: Check) -> Check:
    def check_items(items: Sequence[Any], name: str) -> Iterator[int]:
        for index, item in enumerate(items):
            yield from check_item(item, f"{name}[{index}]") or ()

    return check_items


def _map_check(check_key: Check | None, check_item: Check | None) -> Check:
    def check_entries(entries: Mapping[Any, Any], name: str) -> None:
        for key, item in entries.items():
            if check_key is not None:
                check_key(key, name)
            if check_item is not None:
                check_item(item, name)

    return check_entries


def _check_string(value: str, name: str) -> None:
    if "\0" in value:
        raise MalformedRequest(f"{name} holds a NUL character", field=name)


def _check_enum(known: Set[int], value: int, name: str) -> None:
    if value not in known:
        raise EnumValueUnknown(f"{name} has a value that this server does not know", field=name, value=value)


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

standard = Validator(Limits())
"""Checks what has no field that operators set the limit of: an item of a batch, or a frame."""
