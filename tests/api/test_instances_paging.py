"""Pages of instances and histories: filters, both orders, and tokens that are good for one list only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import workflows_pb2 as pb
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.servers.servers import Served
from tests.support.workers.frames import begin, done, fail, finish, opening, suspend, wait_for
from tests.support.workers.workers import HandWorker, grant

MESSAGE = 4 * 1024 * 1024


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts "order" and has no credit yet."""
    return await hire(credit=0)


async def pages_of(ask: Callable[..., Awaitable[Any]], **fields: Any) -> list[Any]:
    """All pages of a list."""
    pages = [await ask(**fields)]
    while pages[-1].next_page_token:
        pages.append(await ask(page_token=pages[-1].next_page_token, **fields))
    return pages


async def ids(flows: Flows, **fields: Any) -> list[str]:
    """Ids of the instances that match, over all pages."""
    pages = await pages_of(flows.list, **fields)
    return [one.instance_id for page in pages for one in page.instances]


async def in_every_status(worker: HandWorker, flows: Flows) -> dict[str, str]:
    """Instances in all statuses that do not pass by themselves, by their ids."""
    for key in ("complete", "errored", "waiting", "running"):
        await flows.create(key)
        await worker.say(grant(1))
        job = await worker.take()
        if key != "running":
            await job.report(wait_for("w", "go"), {"complete": finish(), "errored": fail(), "waiting": suspend()}[key])
    for key in ("queued", "paused", "terminated"):
        await flows.create(key)
    await flows.manage("Pause", "paused")
    await flows.manage("Terminate", "terminated")
    return {key: key.upper() for key in ("complete", "errored", "waiting", "running", "queued", "paused", "terminated")}


async def test_each_status_is_found_by_its_filter_and_none_besides(worker: HandWorker, flows: Flows) -> None:
    statuses = await in_every_status(worker, flows)

    for key, name in statuses.items():
        assert await ids(flows, statuses=[pb.InstanceStatus.Value(f"INSTANCE_STATUS_{name}")]) == [key]
    some = [pb.INSTANCE_STATUS_PAUSED, pb.INSTANCE_STATUS_COMPLETE, pb.INSTANCE_STATUS_PAUSED]
    assert await ids(flows, statuses=some) == ["paused", "complete"], "the newest first"
    assert await ids(flows, statuses=some, page_size=1, order=pb.LIST_ORDER_OLDEST_FIRST) == ["complete", "paused"]
    assert (await refusal(flows.list(statuses=[0]))).reason == "INVALID_FIELD"


async def test_an_instance_leaves_a_filter_when_its_status_changes(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await flows.manage("Pause", "one")
    assert await ids(flows, statuses=[pb.INSTANCE_STATUS_QUEUED]) == []

    await flows.manage("Resume", "one")
    assert await ids(flows, statuses=[pb.INSTANCE_STATUS_QUEUED]) == ["one"]


@pytest.mark.parametrize("order", [pb.LIST_ORDER_OLDEST_FIRST, pb.LIST_ORDER_NEWEST_FIRST, 0])
async def test_pages_add_up_without_gap_or_duplicate(worker: HandWorker, flows: Flows, order: Any) -> None:
    """Those of a batch share their instant: the order among them is stable all the same."""
    await flows.create_many(*(flows.item(f"i{number:02}") for number in range(30)))
    expected = [f"i{number:02}" for number in range(30)]

    pages = await pages_of(flows.list, page_size=10, order=order)

    listed = [one.instance_id for page in pages for one in page.instances]
    assert [len(page.instances) for page in pages] == [10, 10, 10], "exactly full, and no empty page after it"
    assert listed == (expected if order == pb.LIST_ORDER_OLDEST_FIRST else expected[::-1])


async def test_instances_created_between_two_pages_do_not_disturb_them(worker: HandWorker, flows: Flows) -> None:
    for number in range(4):
        await flows.create(f"i{number}")
    first = await flows.list(page_size=2)
    await flows.create("later")

    second = await flows.list(page_size=2, page_token=first.next_page_token)

    assert [one.instance_id for one in (*first.instances, *second.instances)] == ["i3", "i2", "i1", "i0"]


async def test_labels_must_all_match(worker: HandWorker, flows: Flows) -> None:
    await flows.create("a", labels={"team": "x", "size": "1"})
    await flows.create("b", labels={"team": "x", "size": "2"})
    await flows.create("c", labels={"team": "y", "size": "1"})
    await flows.manage("Pause", "a")

    assert await ids(flows, labels={"team": "x"}) == ["b", "a"]
    assert await ids(flows, labels={"team": "x"}, page_size=1) == ["b", "a"]
    assert await ids(flows, labels={"team": "x", "size": "1"}) == ["a"]
    assert await ids(flows, labels={"team": "X"}) == []
    assert await ids(flows, labels={"team": "x"}, statuses=[pb.INSTANCE_STATUS_PAUSED]) == ["a"]
    assert await ids(flows, labels={"size": "1"}, order=pb.LIST_ORDER_OLDEST_FIRST) == ["a", "c"]
    many = {f"k{number}": "" for number in range(5)}
    assert (await refusal(flows.list(labels=many))).reason == "INVALID_FIELD"


async def test_a_span_of_time_has_its_beginning_and_not_its_end(worker: HandWorker, flows: Flows) -> None:
    made = [await flows.create(f"i{number}") for number in range(3)]
    middle, last = made[1].created_at, made[2].created_at

    assert await ids(flows, created_from=middle) == ["i2", "i1"]
    assert await ids(flows, created_before=middle) == ["i0"]
    assert await ids(flows, created_from=middle, created_before=last) == ["i1"]
    assert await ids(flows, created_from=last, created_before=middle) == []
    assert await ids(flows, created_from=Timestamp(seconds=253_402_300_799)) == []


async def test_a_list_shows_payloads_only_when_asked(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one", "7", labels={"a": "b"})

    (basic,) = (await flows.list()).instances
    (full,) = (await flows.list(view=pb.INSTANCE_VIEW_FULL)).instances

    assert not basic.HasField("params") and full.params.json == "7"
    assert dict(basic.labels) == {"a": "b"}
    assert full == await flows.get("one")


async def test_page_sizes_are_defaulted_clamped_or_refused(worker: HandWorker, flows: Flows) -> None:
    await flows.create_many(*(flows.item() for _ in range(100)))
    await flows.create()

    sizes = [len((await flows.list(page_size=size)).instances) for size in (0, 1, 100, 101, 2**31 - 1)]

    assert sizes == [25, 1, 100, 100, 100]
    assert (await refusal(flows.list(page_size=-1))).reason == "PAGE_SIZE_INVALID"
    assert (await refusal(flows.history("x", page_size=-1))).reason == "PAGE_SIZE_INVALID"


async def test_a_token_is_good_for_the_list_that_gave_it_and_no_other(
    worker: HandWorker, flows: Flows, hire: Hire, server: Served
) -> None:
    await hire("bill")
    for number in range(3):
        await flows.create(f"i{number}", labels={"a": "b"})
    token = (await flows.list(page_size=1)).next_page_token
    others = [
        flows.list(page_token=token, statuses=[pb.INSTANCE_STATUS_QUEUED]),
        flows.list(page_token=token, labels={"a": "b"}),
        flows.list(page_token=token, created_from=Timestamp(seconds=1)),
        flows.list(page_token=token, created_before=Timestamp(seconds=10**10)),
        flows.list(page_token=token, order=pb.LIST_ORDER_OLDEST_FIRST),
        Flows(server.channel, "bill").list(page_token=token),
        flows.history("i0", page_token=token),
        flows.stub.ListWorkflows(pb.ListWorkflowsRequest(page_token=token)),
        flows.list(page_token=token[:-1]),
        flows.list(page_token="x" * 1_000_000),
    ]

    errors = [await refusal(call) for call in others]

    assert {(error.code.name, error.reason) for error in errors} == {("INVALID_ARGUMENT", "PAGE_TOKEN_INVALID")}
    assert len((await flows.list(page_token=token, page_size=2)).instances) == 2, "the size may change"
    assert len((await flows.list(page_token=token, order=pb.LIST_ORDER_NEWEST_FIRST)).instances) == 2


async def test_a_page_of_large_instances_is_cut_to_fit_into_a_message(worker: HandWorker, flows: Flows) -> None:
    large = '"' + "x" * 1_000_000 + '"'
    for number in range(6):
        await flows.create(f"i{number}", large)

    pages = await pages_of(flows.list, view=pb.INSTANCE_VIEW_FULL)

    assert [one.instance_id for page in pages for one in page.instances] == [
        f"i{number}" for number in (5, 4, 3, 2, 1, 0)
    ]
    assert max(page.ByteSize() for page in pages) < MESSAGE
    assert len(pages) > 1


async def test_a_page_of_large_instances_costs_no_more_than_it_shows(
    worker: HandWorker, flows: Flows, payload_bytes: list[int]
) -> None:
    for number in range(6):
        await flows.create(f"i{number}", '"' + "x" * 1_000_000 + '"')
    payload_bytes.clear()

    page = await flows.list(view=pb.INSTANCE_VIEW_FULL)

    assert len(page.instances) == 2
    assert sum(payload_bytes) < page.ByteSize()


async def test_a_page_of_instances_with_large_labels_fits_into_a_message(worker: HandWorker, flows: Flows) -> None:
    """Characters of four bytes: 32 labels of 100 and 100 of them are 25 KiB, and a hundred such instances 2.5 MiB."""
    labels = {"😀" * 98 + f"{number:02}": "😀" * 100 for number in range(32)}
    large = '"' + "x" * 20_000 + '"'
    for _ in range(100):
        await flows.create("", large, labels=labels)

    pages = await pages_of(flows.list, view=pb.INSTANCE_VIEW_FULL, page_size=100)

    assert sum(len(page.instances) for page in pages) == 100
    assert max(page.ByteSize() for page in pages) < MESSAGE


# ---- histories


async def run_of(worker: HandWorker, flows: Flows, steps: int) -> None:
    """The instance "one", with so many steps."""
    await flows.create("one")
    await worker.say(grant(1))
    job = await worker.take()
    await job.report(*(done(f"s{number:02}") for number in range(steps)), finish())


@pytest.mark.parametrize("order", [0, pb.LIST_ORDER_OLDEST_FIRST, pb.LIST_ORDER_NEWEST_FIRST])
async def test_a_history_of_sixty_steps_has_three_pages(worker: HandWorker, flows: Flows, order: Any) -> None:
    await run_of(worker, flows, 60)

    async def ask(**fields: Any) -> pb.GetHistoryResponse:
        return await flows.history("one", **fields)

    pages = await pages_of(ask, order=order)

    names = [entry.step.name for page in pages for entry in page.entries]
    expected = [f"s{number:02}" for number in range(60)]
    assert [len(page.entries) for page in pages] == [25, 25, 10]
    assert names == (expected[::-1] if order == pb.LIST_ORDER_NEWEST_FIRST else expected)


async def test_a_history_shows_steps_and_events_in_the_order_in_which_they_came(
    worker: HandWorker, flows: Flows
) -> None:
    await flows.create("one")
    await worker.say(grant(1))
    job = await worker.take()
    await job.tell(done("a"))
    await flows.event("one", "go", "1")
    await job.tell(wait_for("w", "go"))
    await job.resolved()
    await flows.event("one", "go", "2")

    entries = (await flows.history("one")).entries

    assert [entry.step.name or f"event {entry.event.payload.json}" for entry in entries] == [
        "a",
        "event 1",
        "w",
        "event 2",
    ]
    do, event, wait, unread = entries
    assert (do.step.type, do.step.attempts, do.step.max_attempts) == (pb.STEP_TYPE_DO, 1, 6)
    assert do.step.timeout.seconds == 600 and do.step.created_at.seconds > 0
    assert (wait.step.type, wait.step.event_type) == (pb.STEP_TYPE_WAIT_FOR_EVENT, "go")
    assert (wait.step.attempts, wait.step.HasField("timeout"), wait.step.HasField("max_attempts")) == (0, False, False)
    assert (event.event.consumed_by_step, unread.event.consumed_by_step) == ("w", "")
    assert event.event.HasField("delivered_at") and not unread.event.HasField("delivered_at")


async def test_a_body_that_executes_is_shown_as_running(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await worker.say(grant(1))
    job = await worker.take()
    await job.report(begin(opening("a")))

    steps = await flows.steps("one")

    assert [(name, step.status) for name, step in steps.items()] == [("a", pb.STEP_STATUS_RUNNING)]


async def test_a_history_can_be_that_of_an_earlier_run(worker: HandWorker, flows: Flows) -> None:
    await run_of(worker, flows, 2)
    await flows.manage("Restart", "one")

    current, first = await flows.history("one"), await flows.history("one", run_number=0)

    assert (current.run_number, len(current.entries)) == (1, 0)
    assert (first.run_number, len(first.entries)) == (0, 2)
    for number in (2, -1, 2**31 - 1):
        error = await refusal(flows.history("one", run_number=number))
        assert (error.code.name, error.reason) == ("NOT_FOUND", "RUN_NOT_FOUND")
    token = (await flows.history("one", run_number=0, page_size=1)).next_page_token
    assert (await refusal(flows.history("one", run_number=1, page_token=token))).reason == "PAGE_TOKEN_INVALID"


async def test_a_page_of_a_large_history_costs_no_more_than_it_shows(
    worker: HandWorker, flows: Flows, payload_bytes: list[int]
) -> None:
    await flows.create("one")
    await worker.say(grant(1))
    job = await worker.take()
    for number in range(6):
        await job.tell(done(f"s{number}", '"' + "x" * 1_000_000 + '"'))
    payload_bytes.clear()

    page = await flows.history("one")

    assert [entry.step.name for entry in page.entries] == ["s0", "s1"]
    assert sum(payload_bytes) < page.ByteSize()


async def test_a_history_with_large_results_is_cut_to_fit_into_messages(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await worker.say(grant(1))
    job = await worker.take()
    for number in range(6):
        await job.tell(done(f"s{number}", '"' + "x" * 1_000_000 + '"'))

    async def ask(**fields: Any) -> pb.GetHistoryResponse:
        return await flows.history("one", **fields)

    pages = await pages_of(ask)

    assert [entry.step.name for page in pages for entry in page.entries] == [f"s{number}" for number in range(6)]
    assert max(page.ByteSize() for page in pages) < MESSAGE
