"""Arguments that users give: what cannot be meant is refused by its name, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grpc import StatusCode

from stepwell.errors import CallFailed

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", re.ASCII)


def text(name: str, value: object) -> str:
    """The text that was given as the argument `name`. TypeError if it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    return value


def texts(name: str, values: object) -> list[str]:
    """The texts that were given as the argument `name`. TypeError if one is none, or if they are a single one."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} is a list of texts, not {values!r}")
    return [text(f"each of {name}", value) for value in values]


def mapping(name: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """The mapping that was given as the argument `name`. TypeError if it is not one of text to text."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} is a mapping of text to text, not {values!r}")
    return {text(f"a key of {name}", key): text(f"{name}[{key!r}]", value) for key, value in values.items()}


def new_id(what: str, value: str | None) -> str:
    """The id that was given for something new, or nothing for None: the server makes one. CallFailed if it is none."""
    if value is None:
        return ""
    if not _ID.fullmatch(text("id", value)):
        told = f'{what} id is 1 to 100 letters, digits, "-" or "_", not beginning with "-"; None is a random one'
        reason = f"INVALID_{what.split()[-1].upper()}_ID"
        raise CallFailed(StatusCode.INVALID_ARGUMENT, told, reason, {"id": value})
    return value
