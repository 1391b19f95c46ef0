"""Payloads: what goes out as JSON and how it comes back as the types that were declared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Dict, List, Optional, Set, Tuple  # noqa: UP035 - which people still write

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from stepwell import PayloadInvalid
from stepwell.payloads import build, from_payload, to_json, to_payload
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.server_pb2 import Limits

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Color(StrEnum):
    RED = "red"


@dataclass
class Item:
    sku: int
    color: Color = Color.RED


@dataclass
class Basket:
    items: list[Item]
    first: Item | None = None
    by_name: dict[str, Item] = field(default_factory=dict)


class Person(BaseModel):
    name: str
    age: int = 0


@given(JSON)
def test_plain_values_come_back_as_they_went(value: Any) -> None:
    payload = to_payload(value, Limits(max_payload_depth=1000))

    assert (None if payload is None else from_payload(payload)) == value


def test_dataclasses_go_out_and_come_back() -> None:
    basket = Basket([Item(1), Item(2)], Item(3), {"x": Item(4)})

    assert build(Basket, from_payload(Payload(json=to_json(basket)))) == basket


def test_models_go_out_and_come_back() -> None:
    assert build(Person, from_payload(Payload(json=to_json(Person(name="Ann"))))) == Person(name="Ann")
    with pytest.raises(ValidationError):
        build(Person, {"name": 1})


def test_generic_types_are_built_item_by_item() -> None:
    assert build(list[Item], [{"sku": 1}]) == [Item(1)]
    assert build(dict[str, Item], {"a": {"sku": 1}}) == {"a": Item(1)}
    assert build(tuple[int, Item], [1, {"sku": 1}]) == (1, Item(1))
    assert build(Item | None, None) is None
    assert build(float, 1) == 1.0


@pytest.mark.parametrize(
    ("into", "value", "built"),
    [
        (Dict, {"a": 1}, {"a": 1}),  # noqa: UP006
        (List, [1, "b"], [1, "b"]),  # noqa: UP006
        (Tuple, [1, 2], (1, 2)),  # noqa: UP006
        (Set, [1, 1], {1}),  # noqa: UP006
        (Optional[Dict], {"a": 1}, {"a": 1}),  # noqa: UP006, UP045
        (tuple[()], [], ()),
    ],
)
def test_a_generic_type_that_names_no_item_types_takes_any(into: Any, value: Any, built: Any) -> None:
    assert build(into, value) == built


@pytest.mark.parametrize(
    ("into", "value", "why"),
    [
        (Item, {"sku": "3"}, "sku: expected int, got str"),
        (dict[str, list[Item]], {"a": [{"sku": 1}, {"sku": None}]}, "a: item 1: sku: expected int, got NoneType"),
        (tuple[Item, Color], [{"sku": 1}, "blue"], "item 1: 'blue' is not a valid Color"),
    ],
)
def test_what_does_not_fit_says_where_it_stands(into: Any, value: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        build(into, value)

    assert str(refused.value) == why


@pytest.mark.parametrize(("into", "value"), [(Item, 3), (int, "3"), (str, 3), (Item, {"sku": "3"}), (Color, "blue")])
def test_what_does_not_fit_is_refused(into: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        build(into, value)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), {1, 2}, datetime(2026, 1, 1), object(), "\ud800", b"x"])  # noqa: DTZ001
def test_what_is_not_json_is_refused(wrong: Any) -> None:
    with pytest.raises(PayloadInvalid, match="not JSON"):
        to_payload(wrong)


def test_a_value_within_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    for wrong in (loop, Basket(loop)):
        with pytest.raises(PayloadInvalid):
            to_payload(wrong)


def test_the_size_is_counted_in_bytes_and_the_limit_itself_is_allowed() -> None:
    limits = Limits(max_payload_bytes=10)

    assert to_payload("x" * 8, limits)
    for too_large in ("x" * 9, "ü" * 5):
        with pytest.raises(PayloadInvalid) as refused:
            to_payload(too_large, limits)
        assert refused.value.reason == "PAYLOAD_TOO_LARGE"


def test_what_json_can_write_but_not_read_is_too_deep() -> None:
    value: list[Any] = []
    for _ in range(1100):  # through all the depths at which only one of the two gives up
        value = [value]
        with suppress(PayloadInvalid):  # and nothing else
            to_payload(value, Limits())


def test_the_depth_is_counted_in_levels_not_in_brackets() -> None:
    limits = Limits(max_payload_depth=2)

    assert to_payload([["[[["], ["{{{"], []], limits)
    with pytest.raises(PayloadInvalid) as refused:
        to_payload([[{}]], limits)
    assert refused.value.reason == "PAYLOAD_TOO_DEEP"


def test_nothing_is_no_payload() -> None:
    assert to_payload(None) is None
    assert from_payload(Payload()) is None
