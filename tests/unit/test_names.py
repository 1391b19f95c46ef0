"""Names and request ids."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.values.errors import RequestIdInvalid
from stepwell_server.domain.values.names import check_request_id, is_name

ALLOWED = string.ascii_letters + string.digits + "-_"


@given(st.text(alphabet=ALLOWED, min_size=1, max_size=64))
def test_letters_digits_and_dashes_make_a_name_unless_a_dash_comes_first(text: str) -> None:
    assert is_name(text) == (not text.startswith("-"))


@given(st.text(min_size=1).filter(lambda text: any(c not in ALLOWED for c in text)))
def test_any_other_character_spoils_a_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (64, True), (65, False)])
def test_a_name_has_1_to_64_characters(length: int, good: bool) -> None:
    assert is_name("a" * length) == good


def test_a_request_id_may_be_missing_and_may_be_a_uuid() -> None:
    check_request_id("")
    check_request_id("7b2fd1e6-0f53-4bd4-8a7c-8d0d1a6a9b0f")

    with pytest.raises(RequestIdInvalid):
        check_request_id("x" * 37)
