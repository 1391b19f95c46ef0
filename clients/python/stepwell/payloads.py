"""User data on the wire: JSON text, made of plain values, dataclasses and pydantic models, and read back into them."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from stepwell.errors import PayloadInvalid, text_of
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.server_pb2 import Limits

_DEFAULT_BYTES = 1024 * 1024
_DEFAULT_DEPTH = 64


def to_payload(value: Any, limits: Limits | None = None) -> Payload | None:
    """The value as it is sent, or nothing for None. PayloadInvalid if it is not JSON or beyond the limits, if known."""
    if value is None:
        return None
    text = to_json(value)
    size = _size(text)
    if limits is not None:
        _check_size(size, limits.max_payload_bytes or _DEFAULT_BYTES)
        _check_depth(text, limits.max_payload_depth or _DEFAULT_DEPTH)
    return Payload(json=text)


def to_json(value: Any) -> str:
    """Strict JSON text: no NaN, no lone surrogates, nothing that would not come back as it went."""
    try:
        return _ENCODER.encode(value)
    except Exception as error:  # also of a serializer or a property of the user's
        raise PayloadInvalid(f"not JSON: {text_of(error)}") from error


def from_payload(payload: Payload, into: Any = None) -> Any:
    """The value that was sent, built into the type `into` if there is one; None if nothing was sent."""
    match payload.WhichOneof("body"):
        case "json":
            value = json.loads(payload.json)
        case "binary":
            return payload.binary
        case _:
            return None
    return value if into is None else build(into, value)


def from_argument(payload: Payload, into: Any = None) -> Any:
    """What a function of the user's is called with: the value that was sent, or the empty object if none was."""
    return build(into, from_payload(payload) if payload.WhichOneof("body") else {})


def build(into: Any, value: Any) -> Any:
    """A plain JSON value as the type that a user declared. TypeError or ValueError if it does not fit."""
    if into is None or into is Any or into is object:
        return value
    origin, args = get_origin(into), get_args(into)
    if origin in (Union, types.UnionType):
        return _build_union(args, value)
    if origin in (list, tuple, set, frozenset) and isinstance(value, list):
        return _build_items(origin, args, value)
    if origin is dict and isinstance(value, dict):
        item_type = args[1] if args else None
        return {key: _build_part(key, item_type, item) for key, item in value.items()}
    return _build_plain(origin or into, value)


def _build_plain(into: Any, value: Any) -> Any:
    if not isinstance(into, type):
        return value
    if is_model(into):
        return into.model_validate(value)  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(into):
        return _build_dataclass(into, value)
    if issubclass(into, Enum):
        return into(value)
    if into is float and isinstance(value, int):
        return float(value)
    if into in (str, int, float, bool, list, dict, type(None)) and not isinstance(value, into):
        raise TypeError(f"expected {into.__name__}, got {type(value).__name__}")
    return value


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model. Nobody has one if pydantic was never imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _build_dataclass(into: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object for {into.__name__}, got {type(value).__name__}")
    hints = _hints(into)
    fields = [field.name for field in dataclasses.fields(into) if field.init]
    return into(**{name: _build_part(name, hints.get(name), value[name]) for name in fields if name in value})


def _build_part(name: str, into: Any, value: Any) -> Any:
    """A part of a larger value; what does not fit says where it stands."""
    try:
        return build(into, value)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):  # pydantic says where by itself
            raise
        raise type(error)(f"{name}: {error}") from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError:  # a type that lives inside a function: its values stay plain
        return {}


def _build_union(args: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in args:
        return None
    choices = [arg for arg in args if arg is not type(None)]
    return build(choices[0], value) if len(choices) == 1 else value


def _build_items(origin: Any, args: tuple[Any, ...], value: list[Any]) -> Any:
    if not args:  # a bare List says nothing of its items
        return origin(value)
    if origin is tuple and len(args) == len(value) and args[-1] is not ...:
        return tuple(_build_part(f"item {at}", args[at], item) for at, item in enumerate(value))
    return origin(_build_part(f"item {at}", args[0], item) for at, item in enumerate(value))


def _plain(value: Any) -> Any:
    """What json is to take instead of a value that it does not know."""
    if is_model(type(value)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not a JSON value; convert it to text, a number, a list or a dict")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _size(text: str) -> int:
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:  # a lone surrogate, which the wire cannot carry
        raise PayloadInvalid(f"not JSON: {error}") from error


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadInvalid(f"{size} bytes, at most {limit} are allowed", "PAYLOAD_TOO_LARGE")


def _check_depth(text: str, limit: int) -> None:
    # Brackets are counted first, which is quick: they are at least as many as there are levels.
    if text.count("[") + text.count("{") > limit and _is_deeper(text, limit):
        raise PayloadInvalid(f"nested deeper than {limit} levels", "PAYLOAD_TOO_DEEP")


def _is_deeper(text: str, limit: int) -> bool:
    try:
        return _depth(text, limit) > limit
    except RecursionError:  # deeper than json itself can look, though it could write it: nobody could read it
        return True


def _depth(text: str, enough: int) -> int:
    """How deep the text nests, looked at level by level and no deeper than needed."""
    level, depth = [json.loads(text)], 0
    while depth <= enough:
        inner = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
        if not any(isinstance(value, dict | list) for value in level):
            return depth
        level, depth = inner, depth + 1
    return depth


def _items(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
