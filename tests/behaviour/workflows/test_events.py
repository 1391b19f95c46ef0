"""Sending events: to whom it is possible, what is stored, and whom it wakes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import CallFailed, InstanceStatus, workflow
from stepwell.testing import Harness
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import Gate, refused


@workflow("waiter")
async def waiter(event, step):
    return (await step.wait_for_event("wait", type="go")).payload


@workflow("ender")
async def ender(event, step):
    if event.payload == "fails":
        raise ValueError("as told")
    if event.payload == "waits":
        await step.wait_for_event("wait", type="go")


async def send(h: Harness, workflow: str, instance_id: str, **fields: Any) -> pb.SendEventResponse:
    """SendEvent as it is on the wire, answer and all."""
    request = pb.SendEventRequest(namespace=h.namespace, workflow=workflow, instance_id=instance_id, **fields)
    return await h.client.call(h.client.stub(WorkflowServiceStub).SendEvent, request, 10)


async def test_an_event_to_a_live_instance_is_stored_whatever_that_does(harness: StartHarness) -> None:
    """Behaviour 142."""
    gate = Gate()

    @workflow("busy")
    async def busy(event, step):
        await step.do("work", gate)

    h = await harness(waiter, busy)
    running = await h.client.workflow(busy).create(id="running")
    await gate.reached()
    waiting = await h.client.workflow(waiter).create(id="waiting")
    paused = await h.client.workflow(waiter).create(id="paused")
    await paused.pause()
    await h.stop_worker()
    queued = await h.client.workflow(waiter).create(id="queued")

    for instance in (queued, paused):
        answer = await send(h, "waiter", instance.id, type="other")
        assert answer.status == getattr(pb, f"INSTANCE_STATUS_{instance.id.upper()}")
        assert (answer.event.type, answer.event.event_id > 0) == ("other", True)
    for instance in (running, waiting):
        await send(h, instance.workflow, instance.id, type="other")
    for instance in (queued, paused, running, waiting):
        assert [event.type for event in await h.events(instance)] == ["other"]


async def test_a_running_instance_says_so_when_it_is_sent_something(harness: StartHarness) -> None:
    """Behaviour 142."""
    gate = Gate()

    @workflow("busy")
    async def busy(event, step):
        await step.do("work", gate)

    h = await harness(busy, waiter)
    instance = await h.client.workflow(busy).create()
    waiting = await h.client.workflow(waiter).create()
    await gate.reached()
    assert (await send(h, "busy", instance.id, type="other")).status == pb.INSTANCE_STATUS_RUNNING

    gate.open()
    await h.run_until_idle()
    assert (await send(h, "waiter", waiting.id, type="other")).status == pb.INSTANCE_STATUS_WAITING


@pytest.mark.parametrize("kind", ["completes", "fails", "waits"])
async def test_an_ended_instance_takes_no_events(harness: StartHarness, kind: str) -> None:
    """Behaviour 143."""
    h = await harness(ender)
    instance = await h.start(ender, kind)
    if kind == "waits":
        await instance.terminate()

    assert (await instance.status()).status.is_terminal
    assert await refused(instance.send_event("go")) == "INSTANCE_TERMINAL"
    assert await h.events(instance) == []


async def test_an_event_wakes_the_instance_that_waits_for_it_at_once(harness: StartHarness) -> None:
    """Behaviour 144."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await h.advance("10 minutes")
    now = await h.now()
    await h.send_event(instance, "go", "gone")

    ended = await instance.status()
    assert (ended.output, ended.ended_at) == ("gone", now)


async def test_an_event_to_a_paused_instance_waits_for_its_resumption(harness: StartHarness) -> None:
    """Behaviour 145."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await instance.pause()
    await h.send_event(instance, "go", "gone")

    assert (await instance.status()).status == InstanceStatus.PAUSED
    assert [event.delivered_at for event in await h.events(instance)] == [None]

    await instance.resume()
    await h.run_until_idle()
    assert (await instance.status()).output == "gone"


@pytest.mark.parametrize("type", ["", "-a", "a b", "a.b", "a:b", "a\n", "ä", "a" * 101])
async def test_an_event_type_is_a_name(harness: StartHarness, type: str) -> None:
    """Behaviours 146, 245, 246, 247."""
    h = await harness(waiter)
    instance = await h.start(waiter)

    assert await refused(send(h, "waiter", instance.id, type=type)) == "INVALID_EVENT_TYPE"
    assert await refused(instance.send_event(type)) == "INVALID_EVENT_TYPE"
    assert await h.events(instance) == []


async def test_an_event_type_may_have_a_hundred_characters(harness: StartHarness) -> None:
    """Behaviours 146, 246."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    for type in ("a" * 100, "_a-B9", "0"):
        await instance.send_event(type)

    assert [len(event.type) for event in await h.events(instance)] == [100, 5, 1]


async def test_an_events_payload_is_at_most_a_mebibyte(harness: StartHarness) -> None:
    """Behaviour 147."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    too_large = Payload(json='"' + "x" * 1024 * 1024 + '"')

    assert await refused(send(h, "waiter", instance.id, type="go", payload=too_large)) == "PAYLOAD_TOO_LARGE"
    assert await h.events(instance) == []
    await h.send_event(instance, "go", "x" * 256 * 1024)
    assert len((await instance.status()).output or "") == 256 * 1024


async def test_an_event_that_meets_a_termination_does_not_revive_the_instance(harness: StartHarness) -> None:
    """Behaviour 148."""
    h = await harness(waiter)
    for _ in range(10):
        instance = await h.start(waiter)
        sent, _ = await asyncio.gather(instance.send_event("go"), instance.terminate(), return_exceptions=True)
        await h.run_until_idle()

        status = (await instance.status()).status
        assert status in (InstanceStatus.TERMINATED, InstanceStatus.COMPLETE)
        if isinstance(sent, CallFailed):
            assert (sent.reason, status) == ("INSTANCE_TERMINAL", InstanceStatus.TERMINATED)


async def test_an_event_that_is_sent_again_is_stored_once(harness: StartHarness) -> None:
    """Behaviour 149."""
    h = await harness(waiter)
    one, other = await h.start(waiter), await h.start(waiter)
    first = await send(h, "waiter", one.id, type="other", request_id="r")
    again = await send(h, "waiter", one.id, type="other", request_id="r")

    assert again.event == first.event
    assert len(await h.events(one)) == 1
    assert await refused(send(h, "waiter", other.id, type="other", request_id="r")) == "IDEMPOTENCY_KEY_REUSED"
    assert await h.events(other) == []


async def test_events_sent_together_keep_their_order(harness: StartHarness) -> None:
    """Behaviours 123, 239: stored in the order in which they were sent, all at one instant of a clock that stands."""
    h = await harness(waiter)
    instance = await h.start(waiter)
    await asyncio.gather(*(instance.send_event("other", number) for number in range(50)))

    events = await h.events(instance)
    assert [event.payload for event in events] == list(range(50))
    assert len({event.event_id for event in events}) == 50
