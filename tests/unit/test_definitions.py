"""Definitions: equal ones have one hash, and of several the rule chooses one."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell_server.domain.spine.definitions import Declaration, Definition, in_force

DEFAULTS: dict[str, Any] = {"color": "white", "seats": 1}
OLD, NEW, PUT = Declaration("old", 1), Declaration("new", 5), Declaration("put", 3, put=9)


@pytest.mark.parametrize("declared", [{}, {"seats": 1}, {"seats": 1, "color": "white"}, {"color": "white", "seats": 1}])
def test_what_is_declared_in_another_order_or_left_out_is_the_same_definition(declared: dict[str, Any]) -> None:
    assert Definition.of(declared, DEFAULTS) == Definition.of({}, DEFAULTS)


def test_another_setting_is_another_definition() -> None:
    assert Definition.of({"seats": 2}, DEFAULTS).hash != Definition.of({"seats": 1}, DEFAULTS).hash
    assert Definition.of({"seats": 2}, DEFAULTS).settings == {"color": "white", "seats": 2}


@pytest.mark.parametrize(
    ("declared", "hosted", "current", "expected"),
    [
        ([], {"old"}, None, None),
        ([OLD, NEW], {"old", "new"}, "old", "new"),
        ([OLD, NEW], {"old"}, "new", "old"),
        ([OLD, NEW], set(), "new", "new"),
        ([OLD, NEW], {"unknown"}, "old", "old"),
        ([OLD, NEW, PUT], {"old", "new"}, "new", "put"),
        ([OLD, NEW, PUT], set(), "new", "put"),
        ([OLD, NEW, PUT, Declaration("newest", 10)], {"newest"}, "put", "newest"),
        ([OLD, NEW, PUT, Declaration("newest", 10)], {"old"}, "newest", "put"),
        ([PUT, Declaration("put again", 2, put=12)], {"put"}, "put", "put again"),
        ([Declaration("old", 1, put=12), PUT], set(), "put", "old"),
    ],
)
def test_in_force_is_the_newest_that_is_hosted_or_was_put_last(
    declared: list[Declaration], hosted: set[str], current: str | None, expected: str | None
) -> None:
    assert in_force(declared, hosted, current) == expected
