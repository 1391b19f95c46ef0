"""Restate's worker, Python SDK.

granian --interface asgi --http 2 bench.drivers.restate_worker:app      (in .venv-peers)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import restate

NAP = 2.0
APPROVAL = "approval"

orders = restate.Service("orders")
waiter = restate.Workflow("waiter")


def small_step(number: int, place: int) -> Callable[[], dict[str, Any]]:
    """Return a small JSON at once."""
    return lambda: {"number": number, "place": place, "ok": True}


@orders.handler()
async def three_steps(context: restate.Context, number: int) -> int:
    """L1."""
    results = [await context.run_typed(f"step {place}", small_step(number, place)) for place in (1, 2, 3)]
    return sum(result["place"] for result in results)


@orders.handler("sleeper")
async def sleeper(context: restate.Context, number: int) -> float:
    """L2: return by how much it woke too late."""
    called = time.time()
    await context.sleep(timedelta(seconds=NAP))
    late = time.time() - called - NAP
    await context.run_typed("note", small_step(number, 1))
    return late


@waiter.main()
async def run(context: restate.WorkflowContext, number: int) -> dict[str, Any]:
    """L3."""
    value = await context.promise(APPROVAL).value()
    await context.run_typed("note", small_step(number, 1))
    return {"value": value}


@waiter.handler()
async def approve(context: restate.WorkflowSharedContext, value: int) -> None:
    """The event of L3."""
    await context.promise(APPROVAL).resolve(value)


app = restate.app([orders, waiter])
