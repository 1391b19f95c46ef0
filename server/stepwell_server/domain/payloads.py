"""Payloads: users' data, checked at the door and kept byte for byte."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from stepwell_server.domain.errors import InvalidField, PayloadNotJson, PayloadTooDeep, PayloadTooLarge

ENCODING_LENGTH = 64

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Payload:
    """JSON text, or bytes with a word on how to read them."""

    json: str = ""
    binary: bytes | None = None
    encoding: str = ""

    @property
    def size(self) -> int:
        """How many bytes it brings."""
        return len(self.json.encode()) if self.binary is None else len(self.binary)

    def check(self, field: str, *, most_bytes: int, deepest: int) -> None:
        """Refuse what is too large, too deep or not strict JSON."""
        size = self.size
        if size > most_bytes:
            raise PayloadTooLarge(
                f"{field} has {size} bytes, and {most_bytes} are allowed", field=field, limit=most_bytes
            )
        if self.binary is not None:
            if len(self.encoding) > ENCODING_LENGTH:
                raise InvalidField(f"{field}.encoding is longer than {ENCODING_LENGTH} characters", field=field)
            return
        if _depth(self.json) > deepest:  # before it is parsed: a parser would run out of stack
            raise PayloadTooDeep(f"{field} is nested deeper than {deepest}", field=field, limit=deepest)
        try:
            parsed = _PARSER.decode(self.json)
            if _SURROGATE.search(self.json):
                json.dumps(parsed, ensure_ascii=False).encode()  # refuses one that stands alone
        except ValueError:
            raise PayloadNotJson(f"{field} is not strict JSON", field=field) from None


EMPTY_OBJECT = Payload("{}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _unread(number: str) -> None:
    """A number is only looked at, so that its length does not matter."""


_PARSER: Any = json.JSONDecoder(parse_constant=_refuse, parse_int=_unread, parse_float=_unread)


def _depth(text: str) -> int:
    """How deep the brackets of a JSON text are nested; what stands in strings does not count."""
    if text.count("[") + text.count("{") < 2:
        return 1
    deepest = depth = 0
    for token in _STRUCTURE.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest
