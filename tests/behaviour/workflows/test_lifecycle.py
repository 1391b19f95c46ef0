"""Instances from their creation to their end, and what is refused on the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import App, Instance, InstanceStatus, WorkflowEntrypoint, workflow
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.patience import PATIENCE
from tests.support.workers.workflows import Gate, refused

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@workflow("echo")
async def echo(event, step):
    return await step.do("say", lambda: event.payload)


@workflow("sleeper")
async def sleeper(event, step):
    await step.sleep("nap", "1 hour")
    return "awake"


async def test_creating_does_not_wait_for_the_first_step(harness: StartHarness) -> None:
    """Behaviour 67."""
    gate = Gate()

    @workflow("slow")
    async def slow(event, step):
        await step.do("takes long", gate)

    h = await harness(slow)
    async with asyncio.timeout(PATIENCE):
        instance = await h.client.workflow(slow).create()

    await gate.reached()
    assert (await instance.status()).status == InstanceStatus.RUNNING


async def test_a_batch_is_stored_at_once_although_nobody_runs_it(harness: StartHarness) -> None:
    """Behaviours 68, 221; seed 001 section 5, "Batch create returns quickly"."""
    h = await harness(echo)
    await h.stop_worker()

    async with asyncio.timeout(PATIENCE):
        instances = await h.client.workflow(echo).create_batch([{"params": number} for number in range(100)])

    stored = [status async for status in h.client.workflow(echo).list()]
    assert len(instances) == len(stored) == 100
    assert {one.status for one in stored} == {InstanceStatus.QUEUED}

    await h.start_worker()
    await h.run_until_idle()
    assert [(await instance.status()).output for instance in instances] == list(range(100))


async def test_a_new_instance_is_queued_with_all_that_it_was_given(harness: StartHarness) -> None:
    """Behaviour 72."""
    h = await harness(echo)
    await h.stop_worker()
    instance = await h.client.workflow(echo).create(id="order-7", params={"sku": 7}, labels={"team": "a"})

    stored = await instance.status()
    assert (stored.id, stored.status, stored.run_number) == ("order-7", InstanceStatus.QUEUED, 0)
    assert (stored.params, stored.labels, stored.started_at) == ({"sku": 7}, {"team": "a"}, None)

    await h.start_worker()
    await h.run_until_idle()
    assert (await instance.status()).output == {"sku": 7}


async def test_an_instance_without_an_id_gets_one(harness: StartHarness) -> None:
    """Behaviour 73."""
    h = await harness(echo)
    one, other = await h.start(echo), await h.start(echo)

    assert NAME.fullmatch(one.id) and NAME.fullmatch(other.id)
    assert one.id != other.id


@pytest.mark.parametrize("ends", [False, True], ids=["live", "ended"])
async def test_an_id_is_used_once(harness: StartHarness, ends: bool) -> None:
    """Behaviour 74."""
    h = await harness(sleeper)
    instance = await h.start(sleeper, {"number": 1}, id="only")
    if ends:
        await h.advance("1 hour")
    before = await instance.status()

    assert await refused(h.client.workflow(sleeper).create(id="only", params={"number": 2})) == (
        "INSTANCE_ID_ALREADY_EXISTS"
    )
    await h.run_until_idle()

    assert await instance.status() == before


async def test_two_workflows_may_have_instances_of_one_id(harness: StartHarness) -> None:
    """Behaviour 75."""
    h = await harness(echo, sleeper)
    said, slept = await h.start(echo, "hello", id="same"), await h.start(sleeper, id="same")

    assert (await said.status()).output == "hello"
    assert (await slept.status()).status == InstanceStatus.WAITING


async def test_a_workflow_that_nobody_registered_cannot_be_started(harness: StartHarness) -> None:
    """Behaviour 76."""
    h = await harness(echo)
    unknown = h.client.workflow("unknown")

    assert await refused(unknown.create()) == "WORKFLOW_NOT_FOUND"
    assert await refused(unknown.create(wait="1 second")) == "WORKFLOW_NOT_FOUND"
    assert await refused(unknown.create_batch([{"id": "a"}])) == "WORKFLOW_NOT_FOUND"


async def test_an_instance_that_does_not_exist_is_never_made_up(harness: StartHarness) -> None:
    """Behaviours 77, 195."""
    h = await harness(echo)
    await h.start(echo, id="there")
    nowhere = Instance(h.client, "echo", "nowhere")

    calls = [*every_call(nowhere), nowhere.result(timeout="5 seconds")]
    assert {await refused(call) for call in calls} == {"INSTANCE_NOT_FOUND"}
    assert [one.id async for one in h.client.workflow("echo").list()] == ["there"]


async def test_a_workflow_that_nobody_registered_has_nothing_to_be_asked_for(harness: StartHarness) -> None:
    """Behaviour 76."""
    h = await harness(echo)

    calls = every_call(Instance(h.client, "unknown", "nowhere"))
    assert {await refused(call) for call in calls} == {"WORKFLOW_NOT_FOUND"}
    assert await refused(anext(h.client.workflow("unknown").list())) == "WORKFLOW_NOT_FOUND"


def every_call(instance: Instance[Any]) -> list[Awaitable[Any]]:
    return [
        instance.status(),
        instance.pause(),
        instance.resume(),
        instance.terminate(),
        instance.restart(),
        instance.send_event("hello"),
        instance.history(),
    ]


async def test_what_a_workflow_returns_is_its_output_and_then_nothing_is_left_to_do(harness: StartHarness) -> None:
    """Behaviours 78, 79, 241."""

    @workflow("quiet")
    async def quiet(event, step):
        await step.do("nothing", lambda: None)

    h = await harness(echo, quiet)
    ended = await h.now()
    said, silent = await h.start(echo, {"a": [1, 2.5, None]}), await h.start(quiet)

    complete = await said.status()
    assert (complete.status, complete.output, complete.ended_at) == (
        InstanceStatus.COMPLETE,
        {"a": [1, 2.5, None]},
        ended,
    )
    assert ((await silent.status()).status, (await silent.status()).output) == (InstanceStatus.COMPLETE, None)
    assert complete.error is None

    await h.advance("365 days")
    assert await said.status() == complete


async def test_an_error_outside_of_steps_ends_the_instance(harness: StartHarness) -> None:
    """Behaviours 80, 241."""
    calls = 0

    @workflow("broken")
    async def broken(event, step):
        nonlocal calls
        calls += 1
        raise LookupError("no such thing")

    h = await harness(broken)
    instance = await h.start(broken)
    await h.advance("1 day")

    ended = await instance.status()
    assert ended.status == InstanceStatus.ERRORED and ended.ended_at is not None
    assert ended.error is not None
    assert (ended.error.name, ended.error.message, ended.output) == ("LookupError", "no such thing", None)
    assert calls == 1


async def test_an_error_that_says_nothing_still_has_a_name(harness: StartHarness) -> None:
    """Behaviour 81: in Python every error has a class; one that is no Exception, and one whose text fails."""

    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    class Odd(BaseException):
        pass

    @workflow("odd")
    async def odd(event, step):
        raise {"empty": ValueError(), "odd": Odd("other"), "speechless": Speechless()}[event.payload]

    h = await harness(odd)
    ended = [await (await h.start(odd, kind)).status() for kind in ("empty", "odd", "speechless")]

    assert [one.error and one.error.name for one in ended] == ["ValueError", "Odd", "Speechless"]


async def test_instances_of_a_workflow_that_nobody_hosts_any_more_wait_and_hold_up_nobody(
    harness: StartHarness,
) -> None:
    """Behaviour 82."""
    h = await harness(echo, sleeper)
    orphan = await h.start(sleeper)
    await h.replace_worker(App(workflows=[echo]))
    await h.advance("2 hours")

    assert (await (await h.start(echo, "hello")).status()).output == "hello"
    assert (await orphan.status()).status == InstanceStatus.WAITING

    await h.replace_worker(App(workflows=[echo, sleeper]))
    await h.run_until_idle()
    assert (await orphan.status()).status == InstanceStatus.COMPLETE


@dataclass
class Params:
    sku: int


async def test_a_run_begins_with_the_same_event_on_every_replay(harness: StartHarness) -> None:
    """Behaviours 83, 251."""
    seen = []

    class Order(WorkflowEntrypoint[Params, int]):
        name = "order"

        async def run(self, event, step):
            seen.append((event.payload, event.instance_id, event.timestamp, event.run_number))
            await step.sleep("nap", "1 hour")
            return event.payload.sku

    @workflow("bare")
    async def bare(event, step):
        return event.payload

    h = await harness(Order, bare, cache=0)
    created = await h.now()
    instance = await h.start(Order, Params(7), id="order-7")
    await h.advance("1 hour")

    assert seen == [(Params(7), "order-7", created, 0)] * 2
    assert await instance.result(timeout="5 seconds") == 7
    assert (await (await h.start(bare)).status()).output == {}


async def test_an_instance_starts_once_and_anew_when_restarted(harness: StartHarness) -> None:
    """Behaviours 84, 190."""
    h = await harness(sleeper)
    began = await h.now()
    instance = await h.start(sleeper)
    await h.advance("1 hour")
    assert (await instance.status()).started_at == began

    await h.stop_worker()
    await instance.restart()
    assert (await instance.status()).started_at is None
    await h.start_worker()
    await h.run_until_idle()
    restarted = await instance.status()
    assert restarted.started_at is not None and restarted.started_at > began


async def test_workflows_are_listed_by_the_names_that_they_were_registered_under(harness: StartHarness) -> None:
    """Behaviour 85."""

    class Named(WorkflowEntrypoint):
        name = "by-this-name"

        async def run(self, event: Any, step: Any) -> None:
            """Nothing."""

    h = await harness(echo, Named)
    page = await h.client.stub(WorkflowServiceStub).ListWorkflows(pb.ListWorkflowsRequest(namespace=h.namespace))

    assert [(one.name, one.worker_count) for one in page.workflows] == [("by-this-name", 1), ("echo", 1)]


async def test_a_definition_and_its_name_lead_to_the_same_instances(harness: StartHarness) -> None:
    """Behaviour 89."""
    h = await harness(echo)
    by_definition, by_name = h.client.workflow(echo), h.client.workflow("echo")
    await by_definition.create(id="one", params=1)
    await by_name.create(id="two", params=2)
    await h.run_until_idle()

    assert await (await by_name.get("one")).status() == await (await by_definition.get("one")).status()
    assert [one.id async for one in by_name.list()] == [one.id async for one in by_definition.list()]
    for accessor in (by_definition, by_name):
        assert await refused(accessor.create(id="one")) == "INSTANCE_ID_ALREADY_EXISTS"
        assert await refused(accessor.get("three")) == "INSTANCE_NOT_FOUND"
