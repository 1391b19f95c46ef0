"""The history of a run: every step and every event, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from stepwell import EventEntry, Instance, StepEntry, StepStatus, StepType, workflow
from stepwell.testing import Harness
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.workers.workflows import refused


@workflow("long")
async def long(event, step):
    for number in range(60):
        await step.do(f"step {number}", lambda: None)


async def page(h: Harness, instance: Instance[Any], **fields: Any) -> pb.GetHistoryResponse:
    """One page as it is on the wire."""
    request = pb.GetHistoryRequest(namespace=h.namespace, workflow=instance.workflow, instance_id=instance.id, **fields)
    return await h.client.call(h.client.stub(WorkflowServiceStub).GetHistory, request, 10)


async def pages(h: Harness, instance: Instance[Any], **fields: Any) -> list[list[str]]:
    """The names in all pages: of steps, and the types of events."""
    found, token = [], ""
    while True:
        one = await page(h, instance, page_token=token, **fields)
        found.append([entry.step.name or entry.event.type for entry in one.entries])
        token = one.next_page_token
        if not token:
            return found


async def test_a_long_history_has_several_pages_in_either_direction(harness: StartHarness) -> None:
    """Behaviours 235, 236, 239; seed 001 section 5, "Cursor pagination"."""
    h = await harness(long)
    instance = await h.start(long)
    names = [f"step {number}" for number in range(60)]

    oldest = await pages(h, instance)
    assert [len(one) for one in oldest] == [25, 25, 10]
    assert [name for one in oldest for name in one] == names
    newest = await pages(h, instance, order=pb.LIST_ORDER_NEWEST_FIRST, page_size=7)
    assert [name for one in newest for name in one] == names[::-1]
    assert len(await instance.history()) == 60


async def test_steps_and_events_are_in_the_order_in_which_they_came(harness: StartHarness) -> None:
    """Behaviours 236, 239."""

    @workflow("mixed")
    async def mixed(event, step):
        for number in range(3):
            await step.wait_for_event(f"wait {number}", type=f"event-{number}")
            await step.sleep(f"nap {number}", "1 minute")

    h = await harness(mixed)
    instance = await h.start(mixed)
    for number in range(3):
        await h.advance("1 second")
        await h.send_event(instance, f"event-{number}")
        await h.advance("1 minute")
    expected = [f"{word}{number}" for number in range(3) for word in ("wait ", "event-", "nap ")]

    for size in (1, 2, 5, 100):
        assert [name for one in await pages(h, instance, page_size=size) for name in one] == expected


async def test_a_history_tells_all_there_is_of_every_step_and_event(harness: StartHarness) -> None:
    """Behaviour 238."""

    @workflow("telling")
    async def telling(event, step):
        await step.do("work", lambda: {"a": 1}, retries={"limit": 2}, timeout="1 minute")
        await step.sleep("nap", "1 hour")
        await step.wait_for_event("approval", type="approval", timeout="2 hours")

        def body():
            raise ValueError("never")

        await step.do("fail", body, retries={"limit": 3, "delay": "5 seconds"})

    h = await harness(telling)
    began = await h.now()
    instance = await h.start(telling)
    await h.advance("1 hour")
    await h.send_event(instance, "approval", "yes")
    later = began + timedelta(hours=1)

    work, nap, approval, event, fail = await instance.history()
    assert isinstance(work, StepEntry) and isinstance(nap, StepEntry) and isinstance(approval, StepEntry)
    assert (work.name, work.type, work.status, work.result) == ("work", StepType.DO, StepStatus.COMPLETED, {"a": 1})
    assert (work.attempts, work.max_attempts, work.timeout) == (1, 3, timedelta(minutes=1))
    assert (nap.type, nap.wake_at, nap.created_at, nap.updated_at) == (StepType.SLEEP, later, began, later)
    assert (approval.event_type, approval.result, approval.wake_at) == ("approval", "yes", later + timedelta(hours=2))
    assert isinstance(event, EventEntry) and isinstance(fail, StepEntry)
    assert (event.type, event.payload, event.created_at) == ("approval", "yes", later)
    assert (event.delivered_at, event.consumed_by_step) == (later, "approval")
    assert (fail.status, fail.attempts, fail.max_attempts) == (StepStatus.WAITING, 1, 4)
    assert fail.error is not None and (fail.error.name, fail.error.message) == ("ValueError", "never")
    assert fail.next_retry_at == later + timedelta(seconds=5)


async def test_what_an_ended_run_left_open_is_shown_as_cancelled(harness: StartHarness) -> None:
    @workflow("leaving")
    async def leaving(event, step):
        async with asyncio.TaskGroup() as branches:
            withdrawn = [
                branches.create_task(step.wait_for_event("event", type="never")),
                branches.create_task(step.sleep("nap", "300 days")),
                branches.create_task(step.do("retried", fail, retries={"limit": 3, "delay": "1 hour"})),
            ]
            await step.sleep("moment", "1 minute")
            for one in withdrawn:
                one.cancel()
        await step.wait_for_event("last", type="last")

    def fail():
        raise ValueError("never")

    def told(entries: Sequence[StepEntry | EventEntry]) -> dict[str, tuple[str, object]]:
        return {one.name: (one.status, one.next_retry_at) for one in entries if isinstance(one, StepEntry)}

    h = await harness(leaving)
    instance = await h.start(leaving)
    await h.advance("1 minute")
    alive = told(await instance.history())
    await h.send_event(instance, "last")

    names = ("event", "nap", "retried")
    assert [alive[name][0] for name in names] == [StepStatus.WAITING] * 3
    ended = told(await instance.history())
    assert [ended[name] for name in names] == [(StepStatus.CANCELLED, None)] * 3
    assert [ended[name][0] for name in ("moment", "last")] == [StepStatus.COMPLETED] * 2
    await instance.restart()
    assert told(await instance.history(run_number=0)) == ended, "also when it is an earlier run"


async def test_a_history_is_that_of_the_current_run_unless_another_is_named(harness: StartHarness) -> None:
    """Behaviour 237: a run that never was is refused."""
    h = await harness(long)
    instance = await h.start(long)
    await h.stop_worker()
    await instance.restart()

    assert (await page(h, instance)).run_number == 1
    assert await pages(h, instance) == [[]]
    assert len((await page(h, instance, run_number=0)).entries) == 25
    assert await refused(page(h, instance, run_number=2)) == "RUN_NOT_FOUND"
    assert await refused(page(h, instance, run_number=-1)) in ("RUN_NOT_FOUND", "INVALID_FIELD")


async def test_a_token_is_good_for_its_own_history_only(harness: StartHarness) -> None:
    """Behaviours 233, 234."""
    h = await harness(long)
    one, other = await h.start(long), await h.start(long)
    token = (await page(h, one)).next_page_token

    assert await refused(page(h, other, page_token=token)) == "PAGE_TOKEN_INVALID"
    assert await refused(page(h, one, page_token="nonsense")) == "PAGE_TOKEN_INVALID"
    assert await refused(page(h, one, page_token=token, order=pb.LIST_ORDER_NEWEST_FIRST)) == "PAGE_TOKEN_INVALID"
