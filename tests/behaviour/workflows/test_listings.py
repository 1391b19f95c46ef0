"""Lists of instances: filtered, paged without gaps, and never forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import InstanceStatus, workflow
from stepwell.testing import Harness
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import refused

INSTANT = timedelta(microseconds=1)


@workflow("item")
async def item(event, step):
    if event.payload.get("fails"):
        raise ValueError("as told")
    if event.payload.get("waits"):
        await step.wait_for_event("end", type="end")


async def page(h: Harness, **fields: Any) -> pb.ListInstancesResponse:
    """One page as it is on the wire."""
    request = pb.ListInstancesRequest(namespace=h.namespace, workflow="item", **fields)
    return await h.client.call(h.client.stub(WorkflowServiceStub).ListInstances, request, 10)


async def pages(h: Harness, **fields: Any) -> list[list[str]]:
    """The ids of all pages."""
    found, token = [], ""
    while True:
        one = await page(h, page_token=token, **fields)
        found.append([instance.instance_id for instance in one.instances])
        token = one.next_page_token
        if not token:
            return found


async def numbered(h: Harness, count: int) -> list[str]:
    """So many instances, an instant apart, the newest first."""
    names = [f"n{number:03}" for number in range(count)]
    await h.stop_worker()
    for name in names:
        await h.client.workflow(item).create(id=name)
        await h.advance(INSTANT)
    return names[::-1]


async def test_pages_have_25_entries_unless_told_otherwise_and_never_more_than_100(harness: StartHarness) -> None:
    """Behaviour 228: a size that cannot be is refused."""
    h = await harness(item)
    await h.stop_worker()
    await h.client.workflow(item).create_batch([{"id": f"n{number}"} for number in range(101)])

    assert len((await page(h)).instances) == 25
    assert len((await page(h, page_size=1)).instances) == 1
    assert len((await page(h, page_size=1000)).instances) == 100
    assert await refused(page(h, page_size=-1)) == "PAGE_SIZE_INVALID"


@pytest.mark.parametrize("size", [10, 7, 1])
async def test_pages_leave_nothing_out_and_repeat_nothing(harness: StartHarness, size: int) -> None:
    """Behaviours 229, 230, 231: instances an instant apart, the smallest difference there is."""
    h = await harness(item)
    newest = await numbered(h, 20)

    found = await pages(h, page_size=size)
    assert [name for one in found for name in one] == newest
    assert [len(one) for one in found[:-1]] == [size] * (len(found) - 1)
    oldest = await pages(h, page_size=size, order=pb.LIST_ORDER_OLDEST_FIRST)
    assert [name for one in oldest for name in one] == newest[::-1]


async def test_a_list_that_fills_its_page_exactly_has_no_second_one(harness: StartHarness) -> None:
    """Behaviour 230."""
    h = await harness(item)
    await numbered(h, 10)

    assert [len(one) for one in await pages(h, page_size=10)] == [10]
    assert [len(one) for one in await pages(h, page_size=5)] == [5, 5]


async def test_instances_of_one_instant_are_paged_like_others(harness: StartHarness) -> None:
    """Behaviours 229, 236."""
    h = await harness(item)
    await h.stop_worker()
    await h.client.workflow(item).create_batch([{"id": f"n{number}"} for number in range(30)])

    newest = [name for one in await pages(h, page_size=7) for name in one]
    oldest = [name for one in await pages(h, page_size=7, order=pb.LIST_ORDER_OLDEST_FIRST) for name in one]
    assert sorted(newest) == sorted(f"n{number}" for number in range(30))
    assert oldest == newest[::-1]


async def test_instances_are_found_by_status_labels_and_time(harness: StartHarness) -> None:
    """Behaviour 232; design 8: labels."""
    h = await harness(item)
    first = await h.now()
    await h.start(item, id="done", labels={"team": "a", "kind": "x"})
    await h.start(item, {"fails": True}, id="failed", labels={"team": "a"})
    await h.advance("1 hour")
    second = await h.now()
    await h.start(item, {"waits": True}, id="waiting", labels={"team": "b", "kind": "x"})

    async def found(**filters: Any) -> list[str]:
        return [one.id async for one in h.client.workflow(item).list(**filters)]

    assert await found() == ["waiting", "failed", "done"]
    assert await found(order="oldest") == ["done", "failed", "waiting"]
    assert await found(status=InstanceStatus.ERRORED) == ["failed"]
    assert await found(status=["complete", "waiting"]) == ["waiting", "done"]
    assert await found(labels={"team": "a"}) == ["failed", "done"]
    assert await found(labels={"team": "b", "kind": "x"}) == ["waiting"]
    assert await found(labels={"kind": "x"}, status="complete") == ["done"]
    assert await found(created_from=second) == ["waiting"]
    assert await found(created_from=first, created_before=second) == ["failed", "done"]


async def test_paging_stays_stable_while_statuses_change(harness: StartHarness) -> None:
    """Behaviour 232."""
    h = await harness(item)
    for number in range(6):
        await h.start(item, {"waits": True}, id=f"n{number}")
        await h.advance(INSTANT)
    waiting = {"statuses": [pb.INSTANCE_STATUS_WAITING], "page_size": 2}
    first = await page(h, **waiting)
    assert [one.instance_id for one in first.instances] == ["n5", "n4"]
    for name in ("n5", "n3"):
        await (await h.client.workflow(item).get(name)).terminate()

    second = await page(h, page_token=first.next_page_token, **waiting)
    assert [one.instance_id for one in second.instances] == ["n2", "n1"]


async def test_a_token_is_good_for_its_own_list_only(harness: StartHarness) -> None:
    """Behaviours 233, 234."""
    h = await harness(item)
    await numbered(h, 4)
    token = (await page(h, page_size=1)).next_page_token

    for wrong in ("x", "!!!", token[:-2], token + "AA", "ä"):
        assert await refused(page(h, page_token=wrong)) == "PAGE_TOKEN_INVALID"
    assert await refused(page(h, page_token=token, statuses=[pb.INSTANCE_STATUS_QUEUED])) == "PAGE_TOKEN_INVALID"
    assert await refused(page(h, page_token=token, order=pb.LIST_ORDER_OLDEST_FIRST)) == "PAGE_TOKEN_INVALID"
    assert len((await page(h, page_token=token, page_size=2)).instances) == 2


async def test_an_ended_instance_is_kept_for_ever(harness: StartHarness) -> None:
    """Behaviour 242."""
    h = await harness(item)
    instance = await h.start(item)
    ended = await instance.status()
    for _ in range(3):
        await h.advance("365 days")

    assert await instance.status() == ended
    assert await pages(h) == [[instance.id]]


async def test_a_status_tells_no_more_than_there_is(harness: StartHarness) -> None:
    """Behaviour 241."""
    h = await harness(item)
    waiting, failed = await h.start(item, {"waits": True}), await h.start(item, {"fails": True})
    done = await h.start(item)

    assert [(one.output, one.error) for one in [await waiting.status(), await done.status()]] == [(None, None)] * 2
    error = (await failed.status()).error
    assert error is not None and (error.name, error.message) == ("ValueError", "as told")
