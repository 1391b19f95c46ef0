"""The run of planted bugs says what is wrong with a test before it trusts it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mutants.run import Copy, Mutant, check_health


def copy_with(folder: Path, limit: float = 300.0, **tests: str) -> tuple[list[Mutant], Copy]:
    """A copy that has these files of tests, and a bug for each."""
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(text)
    mutants = [Mutant(name, "source.py", "1", "2", f"test_{name}.py::test_it") for name in tests]
    return mutants, Copy(folder, {**os.environ}, limit)


def test_a_file_that_does_not_end_is_named_with_the_limit(tmp_path: Path) -> None:
    mutants, copy = copy_with(tmp_path, 0.01, endless="import threading\ndef test_it(): threading.Event().wait()\n")

    with pytest.raises(SystemExit, match=r"test_endless\.py pass:\ntook longer than 0\.01 s"):
        check_health(mutants, copy)


def test_a_file_that_fails_is_named(tmp_path: Path) -> None:
    mutants, copy = copy_with(tmp_path, good="def test_it(): pass\n", wrong="def test_it(): assert 1 == 2\n")

    with pytest.raises(SystemExit, match=r"(?s)does test_wrong\.py pass.*assert 1 == 2"):
        check_health(mutants, copy)
