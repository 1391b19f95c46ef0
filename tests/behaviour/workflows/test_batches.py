"""Batches of instances: each decided by itself, in order, and never twice."""

from __future__ import annotations

from typing import Any

from stepwell import InstanceStatus, NewInstance, workflow
from stepwell.testing import Harness
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import refused


@workflow("echo")
async def echo(event, step):
    return await step.do("say", lambda: event.payload)


async def create(h: Harness, *items: pb.CreateInstancesItem, **fields: Any) -> list[pb.CreateInstancesResult]:
    """CreateInstances as it is on the wire."""
    request = pb.CreateInstancesRequest(namespace=h.namespace, items=items, **fields)
    return list((await h.client.call(h.client.stub(WorkflowServiceStub).CreateInstances, request, 10)).results)


def item(id: str, **fields: Any) -> pb.CreateInstancesItem:
    return pb.CreateInstancesItem(workflow="echo", instance_id=id, **fields)


async def ids(h: Harness) -> list[str]:
    return [one.id async for one in h.client.workflow(echo).list(order="oldest")]


async def test_a_batch_is_answered_in_its_order(harness: StartHarness) -> None:
    """Behaviour 221."""
    h = await harness(echo)
    await h.stop_worker()
    batch = await h.client.workflow(echo).create_batch([NewInstance(id=name, params=name) for name in ("c", "a", "b")])

    assert [instance.id for instance in batch] == ["c", "a", "b"]
    assert {(await instance.status()).status for instance in batch} == {InstanceStatus.QUEUED}
    await h.start_worker()
    await h.run_until_idle()
    assert [(await instance.status()).output for instance in batch] == ["c", "a", "b"]


async def test_ids_that_exist_are_skipped_and_left_as_they_are(harness: StartHarness) -> None:
    """Behaviours 222, 224."""
    h = await harness(echo)
    old = await h.start(echo, "old", id="a")
    before = await old.status()
    accessor = h.client.workflow(echo)

    made = await accessor.create_batch([{"id": "a", "params": "new"}, {"id": "b", "params": "new"}])
    assert [instance.id for instance in made] == ["b"]
    assert await accessor.create_batch([{"id": "a"}, {"id": "b"}]) == []
    await h.run_until_idle()
    assert await old.status() == before


async def test_of_an_id_that_occurs_twice_the_first_counts(harness: StartHarness) -> None:
    """Behaviour 223."""
    h = await harness(echo)
    made = await h.client.workflow(echo).create_batch([{"id": "a", "params": 1}, {"id": "a", "params": 2}])
    await h.run_until_idle()

    assert [instance.id for instance in made] == ["a"]
    assert (await made[0].status()).output == 1


async def test_an_empty_batch_is_fine(harness: StartHarness) -> None:
    """Behaviour 225."""
    h = await harness(echo)

    assert await h.client.workflow(echo).create_batch([]) == []
    assert await create(h) == []


async def test_a_batch_has_at_most_a_hundred_entries(harness: StartHarness) -> None:
    """Behaviour 226; the SDK sends a longer one in parts."""
    h = await harness(echo)
    entries = [item(f"n{number}") for number in range(101)]

    assert await refused(create(h, *entries)) == "BATCH_TOO_LARGE"
    assert await ids(h) == []
    assert len(await create(h, *entries[:100])) == 100
    assert len(await h.client.workflow(echo).create_batch([{"id": f"m{number}"} for number in range(101)])) == 101
    assert len(await ids(h)) == 201


async def test_a_batch_that_is_sent_again_makes_nothing_twice(harness: StartHarness) -> None:
    """Behaviour 227."""
    h = await harness(echo)
    entries = [item("", request_id="r1"), item("named", request_id="r2")]
    first = await create(h, *entries)
    again = await create(h, *entries)

    assert [one.instance.instance_id for one in again] == [one.instance.instance_id for one in first]
    assert len(await ids(h)) == 2


async def test_an_entry_that_is_refused_spoils_neither_the_others_nor_the_answer(harness: StartHarness) -> None:
    """Behaviour 70."""
    h = await harness(echo)
    results = await create(h, item("good"), item("not good"), pb.CreateInstancesItem(workflow="unknown"), item("fine"))

    assert [one.WhichOneof("result") for one in results] == ["instance", "error", "error", "instance"]
    assert await ids(h) == ["good", "fine"]
    assert await refused(h.client.workflow(echo).create_batch([{"id": "b"}, {"id": "-b"}])) == "INVALID_INSTANCE_ID"
    assert await ids(h) == ["good", "fine"]
