"""What a type checker makes of workflows, their steps and their events, and of hooks."""

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

HOOKS = """
from dataclasses import dataclass
from typing import Any, assert_type
from stepwell import App, Client, Hook, HookDefinition, JobContext, TriggeredHook, hook

@dataclass
class Receipt:
    order: int

@hook("a")
async def with_context(payload: Receipt, ctx: JobContext) -> None: ...

@hook("b")
def alone(payload: Receipt) -> str: return ""

assert_type(with_context, HookDefinition[Receipt])
assert_type(alone, HookDefinition[Receipt])
app = App(hooks=[with_context, alone])

async def program(client: Client) -> None:
    assert_type(client.hook(alone), Hook[Receipt])
    assert_type(client.hook("b"), Hook[Any])
    assert_type(await client.hook(with_context).trigger(Receipt(1)), TriggeredHook)
    async with client.transaction() as tx:
        assert_type(tx.hook(alone).trigger(Receipt(1)), TriggeredHook)
        tx.hook(alone).trigger(7)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_types_reach_from_definitions_to_results(tmp_path: Path) -> None:
    assert checked(PROGRAM, tmp_path) == "Success: no issues found in 1 source file\n"


@pytest.mark.slow
def test_a_hook_has_the_type_of_its_payload(tmp_path: Path) -> None:
    assert checked(HOOKS, tmp_path) == "Success: no issues found in 1 source file\n"


def checked(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    told, wrong, _ = api.run(["--config-file", "pyproject.toml", "--warn-unused-ignores", str(folder / "program.py")])
    assert wrong == ""
    return told
