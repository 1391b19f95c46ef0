"""Traces: what a program sends with a create, an event or a hook is what the code gets that is executed."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import hook, workflow
from tests.behaviour.workflows.conftest import StartHarness

CREATED = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=1"}
SENT = {"traceparent": "00-" + "3" * 32 + "-" + "4" * 16 + "-01"}


@workflow("traced")
async def traced(event, step):
    received = await step.wait_for_event("wait", type="go")
    return [dict(event.trace), dict(received.trace)]


@pytest.mark.parametrize("wait", [None, "10 ms"], ids=["coalesced", "alone"])
async def test_a_workflow_gets_the_traces_of_its_creation_and_of_its_event(
    harness: StartHarness, wait: str | None
) -> None:
    h = await harness(traced)
    instance = await h.client.workflow(traced).create(trace=CREATED, wait=wait)

    await instance.send_event("go", trace=SENT)

    assert await instance.result() == [CREATED, SENT]
    assert (await instance.status()).trace == CREATED
    assert [one.trace for one in await instance.history() if hasattr(one, "event_id")] == [SENT]


async def test_a_transaction_gives_each_operation_its_own_trace(harness: StartHarness) -> None:
    h = await harness(traced)

    async with h.client.transaction() as tx:
        instance = tx.workflow(traced).create("one", trace=CREATED)
        tx.workflow(traced).get("one").send_event("go", trace=SENT)
        triggered = tx.hook("note").trigger(trace=SENT)

    assert await instance.result() == [CREATED, SENT]
    assert (await triggered.status()).trace == SENT


async def test_a_handler_gets_the_trace_of_its_trigger(harness: StartHarness) -> None:
    got: list[Any] = []

    @hook("note")
    async def note(payload, ctx):
        got.append(ctx.trace)

    h = await harness(hooks=[note])
    await h.client.hook(note).trigger(trace=SENT)

    await h.advance("1 s")
    assert got == [SENT]


async def test_a_trace_that_is_none_is_refused_before_it_is_sent(harness: StartHarness) -> None:
    h = await harness(traced)

    with pytest.raises(TypeError, match="trace is a mapping of text to text"):
        await h.client.workflow(traced).create(trace="00-1-2-01")  # type: ignore[arg-type]
