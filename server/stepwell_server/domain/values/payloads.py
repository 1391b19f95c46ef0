"""Payloads: users' data, checked at the door and kept byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell_server.domain.values import strict_json
from stepwell_server.domain.values.errors import InvalidField, PayloadNotJson, PayloadTooDeep, PayloadTooLarge
from stepwell_server.domain.values.strict_json import NotJson, TooDeep

ENCODING_LENGTH = 64
PART = 64 * 1024
"""Characters of a text that are encoded at once."""


@dataclass(frozen=True, slots=True)
class Payload:
    """JSON text, or bytes with a word on how to read them."""

    json: str = ""
    binary: bytes | None = None
    encoding: str = ""

    @property
    def size(self) -> int:
        """How many bytes it brings."""
        return utf8_size(self.json) if self.binary is None else len(self.binary)

    def scan(self, field: str, *, most_bytes: int, deepest: int) -> Iterator[int]:
        """Refuse what is too large, too deep or not strict JSON. Yields after each part how much was looked at."""
        size = self.size
        if size > most_bytes:
            raise PayloadTooLarge(
                f"{field} has {size} bytes, and {most_bytes} are allowed", field=field, size=size, limit=most_bytes
            )
        if self.binary is not None:
            if len(self.encoding) > ENCODING_LENGTH:
                raise InvalidField(f"{field}.encoding is longer than {ENCODING_LENGTH} characters", field=field)
            return
        try:
            yield from strict_json.scan(self.json, deepest)
        except TooDeep:
            raise PayloadTooDeep(f"{field} is nested deeper than {deepest}", field=field, limit=deepest) from None
        except NotJson:
            raise PayloadNotJson(f"{field} is not strict JSON", field=field) from None


def utf8_size(text: str) -> int:
    """How many bytes a text has on the wire, without a copy of it."""
    if text.isascii():
        return len(text)
    return sum(len(text[begin : begin + PART].encode()) for begin in range(0, len(text), PART))


EMPTY_OBJECT = Payload("{}")
