"""What a type checker makes of a workflow's steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
from typing import assert_type
from stepwell import WorkflowStep

async def on_the_loop() -> int: return 1
def in_a_thread() -> str: return ""

async def program(step: WorkflowStep) -> None:
    assert_type(await step.do("a", on_the_loop), int)
    assert_type(await step.do("b", in_a_thread), str)
    assert_type(await step.do("c", lambda: 1.5), float)
    assert_type(await step.do("d", lambda: on_the_loop()), int)
    assert_type(await step.do("e", {"timeout": "1 s"}, on_the_loop), int)
    assert_type(await step.do("f", on_the_loop, timeout="1 s"), int)

    @step.do("g")
    async def decorated(number: int) -> list[int]: return [number]
    assert_type(await decorated(1), list[int])

    @step.do("h", timeout="1 s")
    def plain(number: int) -> bytes: return b""
    assert_type(await plain(1), bytes)
"""


@pytest.mark.slow
def test_a_step_has_the_type_of_what_its_function_returns(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    told, wrong, _ = api.run(["--config-file", "pyproject.toml", str(tmp_path / "program.py")])

    assert (told, wrong) == ("Success: no issues found in 1 source file\n", "")
