"""Bytes that no honest client sends."""

from __future__ import annotations

from typing import Any

from grpc import aio

CREATE = "/stepwell.v1.NamespaceService/CreateNamespace"
LIST = "/stepwell.v1.NamespaceService/ListNamespaces"
ADVANCE = "/stepwell.v1.ClockService/AdvanceClock"


def send(channel: aio.Channel, method: str, body: bytes, **options: Any) -> Any:
    """Call a unary method with these bytes as its message."""
    return channel.unary_unary(method, request_serializer=None, response_deserializer=None)(body, **options)


def string_field(number: int, value: bytes) -> bytes:
    """A length-delimited field with these bytes, valid or not."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint_field(number: int, value: int) -> bytes:
    """A varint field; a negative value as protobuf encodes it."""
    return varint(number << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
