"""User data on the wire: JSON text, made of plain values, dataclasses and pydantic models, and read back into them.

Dates, UUIDs, decimals and bytes are written as text, an enum as its value, and a set as a list in one order: the ids of
requests are made of what is written, so equal values are written alike in every process.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from stepwell.errors import PayloadInvalid, text_of
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.server_pb2 import Limits

_DEFAULT_BYTES = 1024 * 1024
_DEFAULT_DEPTH = 64

_STANDARD = str.maketrans("-_", "+/")
"""Bytes are read in both alphabets of base64: pydantic writes them in the one for URLs."""

# How a type is written as text, and read from it. A datetime is a date as well, and so comes first.
_TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
    bytes: (lambda value: b64encode(value).decode(), lambda text: b64decode(text.translate(_STANDARD), validate=True)),
}
_MODEL_BYTES = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


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
        raise PayloadInvalid(f"not JSON: {text_of(_place(value))}{text_of(error)}") from error


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
    """The argument for a user's function: the value that was sent, or the empty object if none was."""
    return build(into, from_payload(payload) if payload.WhichOneof("body") else {})


def build(into: Any, value: Any) -> Any:
    """A plain JSON value as the type that a user declared. TypeError or ValueError if it does not fit."""
    if into is None or into is Any or into is object:
        return value
    origin, args = get_origin(into), get_args(into)
    if origin in (Union, types.UnionType):
        return _build_union(args, value)
    if (origin or into) in (list, tuple, set, frozenset) and isinstance(value, list):
        return _build_items(origin or into, args, value)
    if origin is dict and isinstance(value, dict):
        item_type = args[1] if args else None
        return {key: _build_part(key, item_type, item) for key, item in value.items()}
    return _build_plain(origin or into, value)


def _build_plain(into: Any, value: Any) -> Any:
    if not isinstance(into, type):
        return value
    if is_model(into):
        # As JSON, from which also a strict model takes dates and sets.
        _, read = _model_codec(into)
        return read(json.dumps(value))
    if dataclasses.is_dataclass(into):
        return _build_dataclass(into, value)
    if issubclass(into, Enum):
        return _build_enum(into, value)
    if into in _TEXTS:
        return _build_from_text(into, value)
    if into is float and isinstance(value, int):
        return float(value)
    if into in (str, int, float, bool, list, tuple, set, frozenset, dict, type(None)) and not isinstance(value, into):
        raise TypeError(f"expected {into.__name__}, got {type(value).__name__}")
    return value


def _build_enum(into: type[Enum], value: Any) -> Enum:
    try:
        return into(value)
    except ValueError:
        for member in into:  # whose value may be one that is written as another, such as a date or a tuple
            if json.loads(to_json(member.value)) == value:
                return member
        raise


def _build_from_text(into: type, value: Any) -> Any:
    if into is Decimal and type(value) in (int, float):
        value = str(value)
    if not isinstance(value, str):
        raise TypeError(f"expected {into.__name__} as text, got {type(value).__name__}")
    try:
        return _TEXTS[into][1](value)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{value[:100]!r} is not a valid {into.__name__}") from error


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model. There is none if pydantic was never imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


@cache
def _model_codec(model: Any) -> tuple[Callable[..., Any], Callable[[str], Any]]:
    """How a pydantic model is written and read: as it does that itself, but with bytes as base64 if it does not say."""
    model.model_rebuild(raise_errors=False)  # what is incomplete has no schema yet
    schema = model.__pydantic_core_schema__
    if not _has_bytes(schema):
        return model.model_dump, model.model_validate_json
    core, with_base64 = sys.modules["pydantic_core"], _with_base64(schema)
    own = {"_use_prebuilt": False} if "_use_prebuilt" in (core.SchemaValidator.__text_signature__ or "") else {}
    writer, reader = core.SchemaSerializer(with_base64, **own), core.SchemaValidator(with_base64, **own)
    return writer.to_python, reader.validate_json


def _has_bytes(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("type") == "bytes" or any(map(_has_bytes, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_has_bytes, schema))


def _with_base64(schema: Any) -> Any:
    """A schema of pydantic's with the settings for bytes in every part that can have some and has none."""
    if isinstance(schema, list | tuple):
        return [_with_base64(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _with_base64(part) for key, part in schema.items()}
    if schema.get("type") in ("model", "dataclass", "typed-dict"):
        parts["config"] = _MODEL_BYTES | schema.get("config", {})
    return parts


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
    """Convert a value that json does not know."""
    if is_model(type(value)):
        write, _ = _model_codec(value.__class__)
        return _in_order(write(value, mode="json"), value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return _ordered(value)
    for kind, (write, _) in _TEXTS.items():
        if isinstance(value, kind):
            return write(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value; convert it to text, a number, a list or a dict")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _ordered(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=_ENCODER.encode)


def _in_order(dumped: Any, value: Any) -> Any:
    """Sort the sets in a value that pydantic made: pydantic leaves them in that of their hashes."""
    if is_model(type(value)) and not isinstance(dumped, dict):
        return _in_order(dumped, getattr(value, "root", None))
    if isinstance(dumped, list) and isinstance(value, list | tuple | set | frozenset) and len(dumped) == len(value):
        parts = [_in_order(*pair) for pair in zip(dumped, value, strict=True)]
        return _ordered(parts) if isinstance(value, set | frozenset) else parts
    if not isinstance(dumped, dict):
        return dumped
    if isinstance(value, dict):
        named = dict(zip(dumped, value.values(), strict=False))
    else:
        fields = getattr(type(value), "model_fields", {})
        named = {field.serialization_alias: getattr(value, name) for name, field in fields.items()}
    return {key: _in_order(part, named.get(key, getattr(value, key, None))) for key, part in dumped.items()}


def _place(value: Any) -> str:
    """Where in a value the part stands that cannot be written, such as "items: item 1: "; "" if that is all of it."""
    place = ""
    for _ in range(_DEFAULT_DEPTH):
        wrong = next(((name, part) for name, part in _parts(value) if not _is_written(part)), None)
        if wrong is None:
            return place
        name, value = wrong
        place += f"{name}: "
    return ""  # within itself, or too deep to be told


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    try:
        held = value if isinstance(value, dict | list | tuple | set | frozenset) else _plain(value)
    except Exception:
        return ()
    if isinstance(held, dict):
        return held.items()
    return ((f"item {at}", item) for at, item in enumerate(held)) if isinstance(held, list | tuple) else ()


def _is_written(value: Any) -> bool:
    try:
        _ENCODER.encode(value)
    except Exception:
        return False
    return True


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
    except RecursionError:  # deeper than json itself can look, though it could write it: no reader could read it
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
