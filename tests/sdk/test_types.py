"""What a type checker makes of workflows, their steps and their events."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
from typing import Any, assert_type
from stepwell import Client, WorkflowDefinition, WorkflowEvent, WorkflowStep, workflow

class Terms:
    def __init__(self, sku: int) -> None: self.sku = sku

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

    assert_type((await step.wait_for_event("i", type="t", into=Terms)).payload, Terms)
    assert_type((await step.wait_for_event("j", type="t")).payload, Any)

@workflow("order")
async def order(event: WorkflowEvent[Terms], step: WorkflowStep) -> int: return event.payload.sku

async def start(client: Client) -> None:
    assert_type(order, WorkflowDefinition[Terms, int])
    begun = await client.workflow(order).create(params=Terms(7))
    assert_type(await begun.result(), int)
    await client.workflow(order).create(params=7)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_types_reach_from_definitions_to_results(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    told, wrong, _ = api.run(["--config-file", "pyproject.toml", "--warn-unused-ignores", str(tmp_path / "program.py")])

    assert (told, wrong) == ("Success: no issues found in 1 source file\n", "")
