"""What is express: plain workflows from the first call to the last, beside others that are not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import App, Client, Worker, workflow
from stepwell_server.engine.spine import renewals
from stepwell_server.engine.spine.timings import Way
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer

PLAIN, MIXED = 100, 20


@workflow("three-steps")
async def three_steps(event: Any, step: Any) -> int:
    """Add up what the steps return."""
    return sum([await step.do(f"step {place}", lambda place=place: place) for place in (1, 2, 3)])


@workflow("naps")
async def naps(event: Any, step: Any) -> str:
    """Sleep between two steps."""
    first: str = await step.do("before", lambda: "slept")
    await step.sleep("nap", "10ms")
    await step.do("after", lambda: None)
    return first


async def test_nearly_all_calls_of_plain_workflows_are_express(
    start_server: StartServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "ACKS_COLLECTED", PATIENCE)  # acknowledgements come with the first reports
    served = await start_server(postgres_url, express=True)
    async with Client(served.addresses.listen) as client, Worker(client, App(workflows=[three_steps])):
        before = _calls(served)
        handles = await asyncio.gather(*(client.workflow(three_steps).create(params={}) for _ in range(PLAIN)))
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [6] * PLAIN
        express, missed, careful = (now - then for now, then in zip(_calls(served), before, strict=True))

    assert express >= PLAIN * 2
    assert missed + careful <= 0.01 * express


async def test_what_is_not_plain_goes_on_beside_it(start_server: StartServer, postgres_url: str) -> None:
    served = await start_server(postgres_url, express=True)
    async with Client(served.addresses.listen) as client, Worker(client, App(workflows=[three_steps, naps])):
        plain = [client.workflow(three_steps).create(params={}) for _ in range(MIXED)]
        labelled = [client.workflow(naps).create(params={}, labels={"customer": "a"}) for _ in range(MIXED)]
        handles = await asyncio.gather(*plain, *labelled)
        results = await asyncio.gather(*(handle.result() for handle in handles))

    assert results == [6] * MIXED + ["slept"] * MIXED


def _calls(served: Served) -> tuple[float, float, float]:
    """Calls so far: express ones, express ones that missed, and all others."""
    timings = served.app.metrics.timings
    others = timings.group_calls[Way.HOT].total + timings.group_calls[Way.SLOW].total
    return timings.group_calls[Way.EXPRESS].total, timings.missed, others
