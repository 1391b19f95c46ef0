"""Payloads: what is let in, and what not."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell_server.domain.values import strict_json
from stepwell_server.domain.values.errors import (
    InvalidField,
    PayloadNotJson,
    PayloadTooDeep,
    PayloadTooLarge,
    StepwellError,
)
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.storage.database.payloads import from_text, to_text

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def check(payload: Payload, most_bytes: int = 1000_000, deepest: int = 64) -> None:
    for _ in payload.scan("params", most_bytes=most_bytes, deepest=deepest):
        pass


@pytest.fixture(params=[strict_json.PART, 16], ids=["at once", "in parts"], autouse=True)
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is true of a text that is looked at at once is true of one that is looked at in parts."""
    monkeypatch.setattr(strict_json, "PART", request.param)


def depth(value: Any) -> int:
    """How deep a value is nested, a scalar counting as 1 like an empty list."""
    if isinstance(value, dict):
        return 1 + max((depth(one) for one in value.values() if isinstance(one, dict | list)), default=0)
    if isinstance(value, list):
        return 1 + max((depth(one) for one in value if isinstance(one, dict | list)), default=0)
    return 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values, st.booleans())
def test_what_json_writes_is_let_in(value: Any, ascii_only: bool) -> None:
    check(Payload(json.dumps(value, ensure_ascii=ascii_only)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values, st.integers(1, 6))
def test_depth_is_counted_exactly(value: Any, deepest: int) -> None:
    payload = Payload(json.dumps(value))

    if depth(value) > deepest:
        with pytest.raises(PayloadTooDeep):
            check(payload, deepest=deepest)
    else:
        check(payload, deepest=deepest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet='{}[]",:\\ 01tfn.eE-+NaIy\n\u00e4\x01\x02\xa0', max_size=40))
def test_a_text_is_let_in_exactly_if_it_is_strict_json(text: str) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError:
        with pytest.raises((PayloadNotJson, PayloadTooDeep)):
            check(Payload(text))
    else:
        assert not isinstance(value, float) or not math.isnan(value)
        check(Payload(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "{'a': 1}",
        "01",
        "[1,]",
        "nul",
        '"\n"',
        "1 2",
        "\x01",
        "[\x02]",
        '"\\ud800"',
        '"\\ude00\\ud83d"',
        "[}",
        '{"a" 1}',
        "1.",
    ],
)
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(PayloadNotJson):
        check(Payload(text))


def test_brackets_in_strings_do_not_count() -> None:
    check(Payload(json.dumps({"a": "[[[[{{{{", "b": '\\"[[['})), deepest=1)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_bomb_of_brackets_is_refused_and_not_parsed(opening: str) -> None:
    with pytest.raises(PayloadTooDeep) as caught:
        check(Payload(opening * 200_000))

    assert caught.value.metadata == {"field": "params", "limit": "64"}


MEBIBYTE = 1024 * 1024
HOSTILE = {
    "quotes that none closes": '"\\' * (MEBIBYTE // 2),
    "escapes": '"' + "\\n" * (MEBIBYTE // 2) + '"',
    "strings": "[" + '"",' * (MEBIBYTE // 3) + "0]",
    "brackets": "[" + "[],{}," * (MEBIBYTE // 6) + "0]",
    "spaces": "[" + " " * MEBIBYTE + "]",
    "pairs": '"' + "\\ud83d\\ude00" * (MEBIBYTE // 12) + '"',
    "numbers": "[" + "1," * (MEBIBYTE // 2) + "1]",
    "one number": "-" + "1" * MEBIBYTE + ".5e+7",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_each_character_of_a_large_payload_is_looked_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "PART", 4 * 1024)
    looked_at = 0
    try:
        for amount in Payload(text).scan("params", most_bytes=2 * MEBIBYTE, deepest=64):
            looked_at += amount
            assert amount <= strict_json.PART
        assert looked_at == len(text)
    except PayloadNotJson:
        assert text is HOSTILE["quotes that none closes"]


def test_nothing_is_looked_at_behind_the_first_bracket_too_many() -> None:
    text = "[" * 65 + "[],x" * MEBIBYTE

    with pytest.raises(PayloadTooDeep):
        assert not list(Payload(text).scan("params", most_bytes=len(text), deepest=64))


@pytest.mark.parametrize("text", ["9" * 100_000, "-0." + "0" * 50_000 + "e-" + "1" * 50_000, "[1" + "0" * 50_000 + "]"])
def test_a_number_of_any_length_is_only_looked_at(text: str) -> None:
    check(Payload(text))


@pytest.mark.parametrize("text", ["0" * 100_000, "1" * 50_000 + "." + "e5", "1.5" * 50_000, "x" * 100_000, "-" * 9_000])
def test_a_long_word_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(PayloadNotJson):
        check(Payload(text))


@pytest.mark.parametrize(("text", "size"), [("{}", 2), ('"ä"', 4), ('"\U0001f600"', 6)])
def test_size_is_counted_in_bytes(text: str, size: int) -> None:
    payload = Payload(text)
    assert payload.size == size
    check(payload, most_bytes=size)
    with pytest.raises(PayloadTooLarge) as caught:
        check(payload, most_bytes=size - 1)
    assert caught.value.metadata == {"field": "params", "size": str(size), "limit": str(size - 1)}


def test_bytes_may_be_anything_up_to_their_size() -> None:
    payload = Payload(binary=b"\xff\x00[[[", encoding="application/x-own")
    check(payload, most_bytes=5, deepest=1)
    with pytest.raises(PayloadTooLarge):
        check(payload, most_bytes=4)
    with pytest.raises(InvalidField):
        check(Payload(binary=b"", encoding="x" * 65))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=50), st.text(max_size=20))
def test_bytes_come_back_from_storage_as_they_went(data: bytes, encoding: str) -> None:
    payload = Payload(binary=data, encoding=encoding)

    assert from_text((to_text(payload) or b"").decode()) == payload


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values)
def test_json_comes_back_from_storage_byte_for_byte(value: Any) -> None:
    payload = Payload(json.dumps(value))

    assert from_text((to_text(payload) or b"").decode()) == payload
    assert (to_text(None), from_text(None)) == (None, None)


def test_every_refusal_names_the_field() -> None:
    for payload, limits in (
        (Payload("[[]]"), {"deepest": 1}),
        (Payload("x"), {}),
        (Payload("123"), {"most_bytes": 2}),
        (Payload(binary=b"", encoding="x" * 65), {}),
    ):
        with pytest.raises(StepwellError) as caught:
            check(payload, **limits)
        assert caught.value.metadata["field"] == "params"


@pytest.mark.parametrize("sign", ["x", "\u00e4", "\U0001f600"])
def test_the_size_of_a_payload_is_known_without_a_copy_of_it(sign: str) -> None:
    payload = Payload('"' + sign * 1_000_000 + '"')

    tracemalloc.start()
    try:
        size = payload.size
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == len(sign.encode()) * 1_000_000 + 2
    assert most < 600_000
