"""The bugs to plant can be planted: what each of them changes is there, once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LISTS = sorted(Path(__file__).parent.glob("*.toml"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_bug_changes_one_place(path: Path) -> None:
    mutants: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutants"]

    places = {one["name"]: (ROOT / one["file"]).read_text().count(one["old"]) for one in mutants}

    assert {name: number for name, number in places.items() if number != 1} == {}
    assert len(places) == len(mutants)
    assert all(one["old"] != one["new"] for one in mutants)
