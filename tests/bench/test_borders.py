"""The benchmarks measure from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.contestants.table import CONTESTANTS, OURS
from bench.databases import PRODUCTS

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "bench").rglob("*.py"))
MAY_IMPORT = {"fairness.py": {"stepwell_server.policy"}}
"""A policy is a class that the server imports: its interface is public."""
STANDARD_LIBRARY_ONLY = ("drivers/orders.py", "drivers/loops.py")
"""They run in the environments of the peers, too."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_a_benchmark_knows_neither_the_insides_of_the_server_nor_the_tests(path: Path) -> None:
    inside = {name for name in imported(path) if name.partition(".")[0] in ("stepwell_server", "tests")}
    assert inside <= MAY_IMPORT.get(path.name, set())


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_a_benchmark_takes_of_the_sdk_what_users_take(path: Path) -> None:
    of_sdk = {name for name in imported(path) if name.partition(".")[0] == "stepwell"}
    assert all(name == "stepwell" or name.startswith("stepwell.v1") for name in of_sdk)


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_what_peers_share_needs_nothing_installed(name: str) -> None:
    tops = {module.partition(".")[0] for module in imported(ROOT / "bench" / name)}
    assert tops <= {"__future__", "asyncio", "bench", "collections", "json", "sys", "time", "typing"}


def test_every_contestant_has_a_storage() -> None:
    assert {contestant.product for contestant in CONTESTANTS.values()} <= set(PRODUCTS)
    assert set(OURS) <= set(CONTESTANTS)
