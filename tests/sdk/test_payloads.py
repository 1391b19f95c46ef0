"""Payloads: what goes out as JSON and how it comes back as the types that were declared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Dict, List, Optional, Set, Tuple  # noqa: UP035 - which people still write
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, field_serializer, field_validator

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
    height: float = 1.5


class Size(IntEnum):
    SMALL = 1


class Season(Enum):
    SUMMER = date(2026, 6, 21)
    WINTER = (12, 21)


@dataclass
class Kinds:
    at: datetime
    day: date
    key: UUID
    amount: Decimal
    raw: bytes
    size: Size
    season: Season
    names: set[str]
    days: frozenset[date]
    keys: dict[str, list[UUID]]
    maybe: datetime | None = None


class StrictKinds(BaseModel):
    """As strict as a model can be, so that nothing is taken for what it is not."""

    model_config = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")

    at: datetime
    day: date
    key: UUID
    amount: Decimal
    raw: bytes
    size: Size
    names: set[str]
    days: frozenset[date]


class Blob(BaseModel):
    """A model that says nothing of its bytes."""

    model_config = ConfigDict(strict=True, serialize_by_alias=True)

    raw: bytes
    many: dict[str, list[bytes]] = Field(default_factory=dict, serialization_alias="Many", validation_alias="Many")
    within: Blob | None = None
    chunk: Chunk | None = None
    root: RootModel[set[bytes]] | None = None


@dataclass
class Chunk:
    raw: bytes


class OldBlob(BaseModel):
    """A model that says of its bytes that they are text."""

    model_config = ConfigDict(ser_json_bytes="utf8", val_json_bytes="utf8")

    raw: bytes


class HexBlob(BaseModel):
    """A model that writes and reads its bytes itself."""

    raw: bytes

    @field_serializer("raw")
    def _write(self, raw: bytes) -> str:
        return raw.hex()

    @field_validator("raw", mode="before")
    @classmethod
    def _read(cls, text: Any) -> Any:
        return bytes.fromhex(text) if isinstance(text, str) else text


class Blobs(BaseModel):
    old: OldBlob
    hex: HexBlob
    blobs: list[Blob]


class Tagged(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    tags: set[str] = Field(serialization_alias="Tags")
    by_name: dict[str, list[frozenset[str]]]
    root: RootModel[set[str]]


def happens_once(at: datetime) -> bool:
    """Whether no clock shows this time twice: Python takes such a time as equal to none of another zone."""
    return at.utcoffset() == at.replace(fold=1 - at.fold).utcoffset()


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "at": st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False).filter(happens_once),
    "day": st.dates(),
    "key": st.uuids(),
    "amount": st.decimals(allow_nan=False, allow_infinity=False),
    "raw": st.binary(),
    "size": st.sampled_from(Size),
    "names": st.sets(st.text()),
    "days": st.frozensets(st.dates()),
}


@given(JSON)
def test_plain_values_come_back_as_they_went(value: Any) -> None:
    payload = to_payload(value, Limits(max_payload_depth=1000))

    assert (None if payload is None else from_payload(payload)) == value


def test_dataclasses_go_out_and_come_back() -> None:
    basket = Basket([Item(1), Item(2)], Item(3), {"x": Item(4)})

    assert build(Basket, from_payload(Payload(json=to_json(basket)))) == basket


def there_and_back(value: Any, into: Any) -> Any:
    return from_payload(Payload(json=to_json(value)), into)


@given(
    st.builds(
        Kinds,
        **SCALARS,
        season=st.sampled_from(Season),
        keys=st.dictionaries(st.text(), st.lists(st.uuids())),
        maybe=st.none() | st.datetimes(),
    )
)
def test_what_json_has_no_word_for_comes_back_in_dataclasses(kinds: Kinds) -> None:
    assert there_and_back(kinds, Kinds) == kinds


@given(st.builds(dict, **{name: kind for name, kind in SCALARS.items() if name != "at"}), st.datetimes())
def test_what_json_has_no_word_for_comes_back_in_models(values: dict[str, Any], at: datetime) -> None:
    kinds = StrictKinds(**values, at=at)

    assert there_and_back(kinds, StrictKinds) == kinds


@given(st.binary(), st.dictionaries(st.text(), st.lists(st.binary())), st.sets(st.binary()))
def test_bytes_come_back_in_models(raw: bytes, many: dict[str, list[bytes]], root: set[bytes]) -> None:
    blob = Blob(raw=raw, Many=many, within=Blob(raw=raw), chunk=Chunk(raw), root=RootModel[set[bytes]](root))

    assert there_and_back(blob, Blob) == blob
    assert there_and_back([blob], list[Blob]) == [blob]


def test_a_model_that_says_how_its_bytes_are_written_is_obeyed() -> None:
    blobs = Blobs(old=OldBlob(raw=b"abc"), hex=HexBlob(raw=b"\xff"), blobs=[Blob(raw=b"\xff\xfe")])

    written = from_payload(Payload(json=to_json(blobs)))

    assert (written["old"], written["hex"]) == ({"raw": "abc"}, {"raw": "ff"})
    assert written["blobs"][0]["raw"] == "__4="
    assert there_and_back(blobs, Blobs) == blobs


def test_bytes_of_a_model_are_read_in_a_dataclass_and_the_other_way_round() -> None:
    assert there_and_back(Blob(raw=b"\xff\xfe"), Chunk) == Chunk(b"\xff\xfe")
    assert there_and_back(Chunk(b"\xff\xfe"), Blob) == Blob(raw=b"\xff\xfe")


@pytest.mark.parametrize(
    ("value", "into", "text"),
    [
        (datetime(2026, 1, 2, 3, tzinfo=UTC), datetime, '"2026-01-02T03:00:00+00:00"'),
        (date(2026, 1, 2), date, '"2026-01-02"'),
        (UUID(int=1), UUID, '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), Decimal, '"1.10"'),
        (b"\xff\x00", bytes, '"/wA="'),
        (Size.SMALL, Size, "1"),
        (Season.WINTER, Season, "[12,21]"),
        ({"b", "a"}, set, '["a","b"]'),
        ({date(2026, 1, 2), date(2026, 1, 1)}, set[date], '["2026-01-01","2026-01-02"]'),
        (frozenset({frozenset({2, 1})}), frozenset[frozenset[int]], "[[1,2]]"),
        ([UUID(int=1)], list[UUID], '["00000000-0000-0000-0000-000000000001"]'),
    ],
)
def test_a_value_is_written_in_one_way_and_read_by_its_annotation(value: Any, into: Any, text: str) -> None:
    assert to_json(value) == text
    assert there_and_back(value, into) == value


def test_sets_are_written_in_one_order_also_within_models() -> None:
    names = [f"name-{number}" for number in range(20)]
    ordered = sorted(names)
    tagged = Tagged(tags=set(names), by_name={"a": [frozenset(names)]}, root=RootModel[set[str]](set(names)))

    assert from_payload(Payload(json=to_json(tagged))) == {
        "Tags": ordered,
        "by_name": {"a": [ordered]},
        "root": ordered,
    }


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
        (dict[str, datetime], {"at": "soon"}, "at: 'soon' is not a valid datetime"),
        (list[Decimal], ["1", "x"], "item 1: 'x' is not a valid Decimal"),
        (list[bytes], ["*"], "item 0: '*' is not a valid bytes"),
        (dict[str, UUID], {"key": 5}, "key: expected UUID as text, got int"),
        (set[int], {"a": 1}, "expected set, got dict"),
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


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), object(), "\ud800", pytest.param(10**5000, id="huge")])
def test_what_is_not_json_is_refused(wrong: Any) -> None:
    with pytest.raises(PayloadInvalid, match="not JSON"):
        to_payload(wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"a": [1, float("nan")]}, "not JSON: a: item 1: Out of range float"),
        (Basket([Item(1), Item(10**5000)]), "not JSON: items: item 1: sku: Exceeds the limit"),
        ({"names": {1, object()}}, "not JSON: names: "),
        (Person(name="Ann", height=float("inf")), "not JSON: height: Out of range float"),
    ],
)
def test_what_is_not_json_is_refused_by_its_place(wrong: Any, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why):
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
