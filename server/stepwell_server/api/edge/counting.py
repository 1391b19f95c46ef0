"""Messages as bytes: what is in them is counted before a parser makes objects of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from stepwell_server.api.edge import bounds
from stepwell_server.api.edge.bounds import FIELD_COST
from stepwell_server.domain.values.errors import InvalidField, MalformedRequest
from stepwell_server.domain.values.limits import Limits

PART = 256
"""Values that are counted at once."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def count(raw: bytes, kind: Descriptor, limits: Limits) -> Iterator[int]:
    """Refuse bytes with more elements than the fields of their message may have, or with too many values in all.

    Stops at the first one too many, and looks into no text. Yields after each part how much work it was.
    """
    counted = Counter[int]()
    inside = [(kind, len(raw))]
    at = values = 0
    path = ""
    while inside:
        of, end = inside[-1]
        if at == end:
            inside.pop()
            continue
        tag, at = _varint(raw, at, end)
        begin, at = _value(raw, tag & 7, at, end)
        values += 1
        if values % PART == 0:
            yield PART * FIELD_COST
        field = _fields(of).get(tag >> 3)
        if len(inside) == 1:
            path = "" if field is None else field.name
            if field is not None and field.is_repeated:
                counted[field.number] += _elements(field, tag & 7, at - begin)
                if counted[field.number] > bounds.most(field, limits):
                    raise bounds.too_many(field, path, counted[field.number], limits)
        if values > limits.message_values:
            most = limits.message_values
            raise InvalidField(f"a message has at most {most} values", field=path, limit=most)
        if tag & 7 == _LENGTH and field is not None and field.message_type is not None:
            inside.append((field.message_type, at))
            at = begin


def _elements(field: FieldDescriptor, wire: int, length: int) -> int:
    """How many elements a value brings, at least: numbers can come packed, each in up to ten bytes."""
    is_packed = wire == _LENGTH and field.message_type is None and field.type not in _TEXTS
    return -(-length // _LONGEST_VARINT) if is_packed else 1


_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


@cache
def _fields(kind: Descriptor) -> dict[int, FieldDescriptor]:
    return {field.number: field for field in kind.fields}


def _value(raw: bytes, wire: int, at: int, end: int) -> tuple[int, int]:
    """Where the value that stands here begins and ends."""
    begin = at
    if wire == _VARINT:
        _, at = _varint(raw, at, end)
    elif wire == _LENGTH:
        length, begin = _varint(raw, at, end)
        at = begin + length
    elif wire in (_FIXED64, _FIXED32):
        at += 8 if wire == _FIXED64 else 4
    else:  # a group, which no message of ours has
        raise _malformed()
    if at > end:
        raise _malformed()
    return begin, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that stands here, and where it ends."""
    value = shift = 0
    while at < end and shift < 7 * _LONGEST_VARINT:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _malformed()


def _malformed() -> MalformedRequest:
    return MalformedRequest("the request is not a valid message of its type")
