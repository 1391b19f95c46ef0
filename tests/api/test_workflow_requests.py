"""Batches and repeated requests: every item is answered by itself, and what was done is not done again."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.errors import reason_name
from stepwell.v1 import workflows_pb2 as pb
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows, status_name
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import done, finish, payload, wait_for
from tests.support.workers.workers import HandWorker, grant


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts "order" and has no credit yet."""
    return await hire(credit=0)


def outcomes(results: list[pb.CreateInstancesResult]) -> list[str]:
    """What became of each item: its id, "skipped", or why it was refused."""
    return [
        one.instance.instance_id or ("skipped" if one.skipped else reason_name(one.error.reason)) for one in results
    ]


# ---- batches of instances


async def test_a_batch_is_answered_item_by_item_in_its_order(worker: HandWorker, flows: Flows) -> None:
    results = await flows.create_many(flows.item("c"), flows.item("a"), flows.item("b", params=payload("7")))

    assert outcomes(results) == ["c", "a", "b"]
    assert {status_name(one.instance.status) for one in results} == {"QUEUED"}
    assert not results[2].instance.HasField("params"), "in the basic view"
    assert (await flows.get("b")).params.json == "7"


@pytest.mark.parametrize(
    ("on_existing", "said"),
    [
        (pb.ON_EXISTING_UNSPECIFIED, "INSTANCE_ID_ALREADY_EXISTS"),
        (pb.ON_EXISTING_ERROR, "INSTANCE_ID_ALREADY_EXISTS"),
        (pb.ON_EXISTING_SKIP, "skipped"),
    ],
)
async def test_ids_that_exist_are_refused_or_skipped_and_not_changed(
    worker: HandWorker, flows: Flows, on_existing: pb.OnExisting.ValueType, said: str
) -> None:
    await flows.create("old", "1")
    items = [flows.item("old", params=payload("2")), flows.item("new"), flows.item("new", params=payload("3"))]

    results = await flows.create_many(*items, on_existing=on_existing)

    assert outcomes(results) == [said, "new", said], "of an id that occurs twice the first counts"
    assert [(await flows.get(one)).params.json for one in ("old", "new")] == ["1", "{}"]


async def test_a_bad_item_is_refused_alone(worker: HandWorker, flows: Flows) -> None:
    unknown = pb.CreateInstancesItem(workflow="unknown", instance_id="x")
    bad = [
        flows.item("a b"),
        flows.item("deep", params=payload("[" * 65)),
        flows.item("none", params=payload("{")),
        flows.item("labels", labels={"": "x"}),
        flows.item("id", request_id="x" * 37),
        unknown,
    ]

    results = await flows.create_many(flows.item("first"), *bad, flows.item("last"), on_existing=pb.ON_EXISTING_SKIP)

    assert outcomes(results) == [
        "first",
        "INVALID_INSTANCE_ID",
        "PAYLOAD_TOO_DEEP",
        "PAYLOAD_NOT_JSON",
        "INVALID_FIELD",
        "REQUEST_ID_INVALID",
        "WORKFLOW_NOT_FOUND",
        "last",
    ]
    assert results[1].error.message and results[1].error.metadata["field"] == "instance_id"


async def test_a_batch_has_at_most_a_hundred_items_or_nothing_is_done(worker: HandWorker, flows: Flows) -> None:
    items = [flows.item(f"i{number}") for number in range(101)]

    error = await refusal(flows.create_many(*items))

    assert (error.code.name, error.reason, error.metadata["limit"]) == ("INVALID_ARGUMENT", "BATCH_TOO_LARGE", "100")
    assert not (await flows.list()).instances
    assert len(await flows.create_many(*items[:100])) == 100
    assert await flows.create_many() == []


async def test_a_batch_may_be_of_several_workflows(hire: Hire, flows: Flows, server: Served) -> None:
    await hire("order", "bill", credit=0)
    bill = Flows(server.channel, "bill")

    await flows.create_many(flows.item("one"), bill.item("one"))

    assert [(await one.get("one")).workflow for one in (flows, bill)] == ["order", "bill"]


# ---- batches of events


async def send(flows: Flows, *items: pb.SendEventsItem) -> list[pb.SendEventsResult]:
    """Send a batch of events."""
    return list((await flows.stub.SendEvents(pb.SendEventsRequest(namespace=flows.namespace, items=items))).results)


def event(instance_id: str, json: str = "", *, event_type: str = "go", request_id: str = "") -> pb.SendEventsItem:
    """An event of a batch."""
    item = pb.SendEventsItem(workflow="order", instance_id=instance_id, type=event_type, request_id=request_id)
    if json:
        item.payload.CopyFrom(payload(json))
    return item


async def payloads(flows: Flows, instance_id: str) -> list[str]:
    """Payloads of the events of an instance, in the order in which they were stored."""
    page = await flows.history(instance_id, page_size=100)
    return [entry.event.payload.json for entry in page.entries if entry.HasField("event")]


async def test_events_of_a_batch_are_stored_in_their_order(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    await send(flows, *(event("one", str(number)) for number in range(30)))

    assert await payloads(flows, "one") == [str(number) for number in range(30)]


async def test_events_of_a_batch_keep_their_order_at_a_replica_that_has_just_started(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    first = await start_server(postgres_url)
    await hire_at(first, credit=0)
    await Flows(first.channel).create("one")
    flows = Flows((await start_server(postgres_url)).channel)

    await send(flows, *(event("one", str(number)) for number in range(30)))

    assert await payloads(flows, "one") == [str(number) for number in range(30)]


async def test_a_bad_event_is_refused_alone(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await flows.create("over")
    await flows.manage("Terminate", "over")

    results = await send(
        flows,
        event("one", "1"),
        event("over"),
        event("nobody"),
        event("one", event_type="a b"),
        event("one", "NaN"),
        event("one", "2"),
    )

    reasons = [reason_name(one.error.reason) if one.HasField("error") else "stored" for one in results]
    assert reasons == [
        "stored",
        "INSTANCE_TERMINAL",
        "INSTANCE_NOT_FOUND",
        "INVALID_EVENT_TYPE",
        "PAYLOAD_NOT_JSON",
        "stored",
    ]
    assert await payloads(flows, "one") == ["1", "2"]


async def test_a_batch_of_events_has_at_most_a_hundred(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    assert (await refusal(send(flows, *[event("one")] * 101))).reason == "BATCH_TOO_LARGE"
    assert len(await send(flows, *[event("one")] * 100)) == 100
    assert await send(flows) == []


# ---- repeated requests


async def test_a_repeated_create_is_answered_again_and_done_once(worker: HandWorker, flows: Flows) -> None:
    first = await flows.create("", "1", labels={"a": "b"}, request_id="once")

    again = await flows.create("", "1", labels={"a": "b"}, request_id="once")

    assert again == first
    assert len((await flows.list()).instances) == 1


async def test_a_create_repeated_after_its_run_ended_finds_what_it_made(worker: HandWorker, flows: Flows) -> None:
    await worker.say(grant(1))
    await flows.create("one", request_id="once")
    await (await worker.take()).tell(finish("42"))

    again = await flows.create("one", request_id="once", wait=5)

    assert (again.instance_id, status_name(again.status), again.output.json) == ("one", "COMPLETE", "42")


async def test_a_request_id_of_a_create_is_not_good_for_another_body(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one", "1", request_id="once")

    for call in (
        {"instance_id": "one", "params": "2"},
        {"instance_id": "two", "params": "1"},
        {"instance_id": "one", "params": "1", "labels": {"a": "b"}},
    ):
        error = await refusal(flows.create(request_id="once", **call))
        assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED")
    assert (await refusal(flows.create("one", "1"))).reason == "INSTANCE_ID_ALREADY_EXISTS"


async def test_a_create_alone_and_in_a_batch_are_the_same_request(worker: HandWorker, flows: Flows) -> None:
    """So a client may send again in a batch what it sent alone, or the other way round."""
    await flows.create("one", "1", request_id="once")

    again = await flows.create_many(
        flows.item("one", params=payload("1"), request_id="once"), flows.item("two", request_id="other")
    )
    alone = await flows.create("two", request_id="other")

    assert outcomes(again) == ["one", "two"]
    assert alone.instance_id == "two"
    other = await flows.create_many(flows.item("one", params=payload("2"), request_id="once"))
    assert outcomes(other) == ["IDEMPOTENCY_KEY_REUSED"]


async def test_a_batch_repeated_after_a_lost_answer_creates_nothing_twice(worker: HandWorker, flows: Flows) -> None:
    items = [flows.item("named", request_id="r1"), *(flows.item(request_id=f"r{number}") for number in range(2, 20))]

    first = await flows.create_many(*items)
    again = await flows.create_many(*items)

    assert outcomes(again) == outcomes(first)
    assert len((await flows.list(page_size=100)).instances) == 19


async def test_creates_with_one_request_id_at_once_make_one_instance(worker: HandWorker, flows: Flows) -> None:
    made = await asyncio.gather(*(flows.create("", "1", request_id="once") for _ in range(8)))

    assert len({one.instance_id for one in made}) == 1
    assert len((await flows.list()).instances) == 1


async def test_creates_with_one_request_id_at_two_replicas_make_one_instance(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    servers = [await start_server(postgres_url) for _ in range(2)]
    await hire_at(servers[0], credit=0)
    flows = [Flows(server.channel) for server in servers]

    made = await asyncio.gather(*(flows[number % 2].create("", "1", request_id="once") for number in range(8)))

    assert len({one.instance_id for one in made}) == 1


async def test_a_repeated_event_is_stored_once(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    first = await flows.event("one", "go", "1", request_id="once")
    again = await flows.event("one", "go", "1", request_id="once")
    (batched,) = await send(flows, event("one", "1", request_id="once"))

    assert again == first == batched.stored
    assert await payloads(flows, "one") == ["1"]


async def test_an_event_sent_alone_again_after_a_batch_is_stored_once(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    batch = [event("one", str(number), request_id=f"r{number}") for number in range(3)]
    await send(flows, *batch)
    await flows.event("one", "go", "1", request_id="r1")
    await send(flows, *batch, event("one", "3", request_id="r3"))
    twice = await send(flows, event("one", "4", request_id="r4"), event("one", "4", request_id="r4"))

    assert await payloads(flows, "one") == ["0", "1", "2", "3", "4"]
    assert twice[0].stored.event.event_id == twice[1].stored.event.event_id


async def test_a_request_id_of_an_event_is_not_good_for_another_body(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await flows.create("two")
    await flows.event("one", "go", "1", request_id="once")

    for call in (
        flows.event("one", "go", "2", request_id="once"),
        flows.event("one", "stop", "1", request_id="once"),
        flows.event("two", "go", "1", request_id="once"),
    ):
        assert (await refusal(call)).reason == "IDEMPOTENCY_KEY_REUSED"
    assert await payloads(flows, "one") == ["1"]


async def test_an_event_repeated_after_the_end_of_its_run_is_answered_and_not_refused(
    worker: HandWorker, flows: Flows
) -> None:
    await worker.say(grant(1))
    await flows.create("one")
    job = await worker.take()
    sent = await flows.event("one", "go", request_id="once")
    await job.report(wait_for("w", "go"), finish())

    again = await flows.event("one", "go", request_id="once")

    assert again.event.event_id == sent.event.event_id
    assert status_name(again.status) == "COMPLETE"


@pytest.mark.parametrize("verb", ["Terminate", "Restart", "Pause", "Resume"])
async def test_a_repeated_management_call_is_done_once(worker: HandWorker, flows: Flows, verb: str) -> None:
    await flows.create("one")

    first = await flows.manage(verb, "one", request_id="once")
    again = await flows.manage(verb, "one", request_id="once")

    assert again == first
    assert again.run_number == (1 if verb == "Restart" else 0)
    await flows.create("two")
    error = await refusal(flows.manage(verb, "two", request_id="once"))
    assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED")


async def test_restarts_with_one_request_id_at_once_make_one_run(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    answers = await asyncio.gather(*(flows.manage("Restart", "one", request_id="once") for _ in range(6)))

    assert {one.run_number for one in answers} == {1}
    assert (await flows.get("one")).run_number == 1


async def test_a_restart_repeated_with_another_step_is_another_request(worker: HandWorker, flows: Flows) -> None:
    await worker.say(grant(1))
    await flows.create("one")
    await (await worker.take()).report(done("a"), done("b"), finish())
    await flows.manage("Restart", "one", from_step="b", request_id="once")

    error = await refusal(flows.manage("Restart", "one", request_id="once"))

    assert error.reason == "IDEMPOTENCY_KEY_REUSED"
    assert (await flows.get("one")).run_number == 1


async def test_a_terminate_repeated_after_a_restart_does_not_end_the_new_run(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    await flows.manage("Terminate", "one", request_id="once")
    await flows.manage("Restart", "one")

    await flows.manage("Terminate", "one", request_id="once")

    assert await flows.status("one") == "QUEUED"


async def test_a_refused_call_is_not_remembered(worker: HandWorker, flows: Flows) -> None:
    assert (await refusal(flows.manage("Terminate", "one", request_id="once"))).reason == "INSTANCE_NOT_FOUND"
    assert (await refusal(flows.event("one", "go", request_id="again"))).reason == "INSTANCE_NOT_FOUND"
    await flows.create("one")

    assert await flows.event("one", "go", request_id="again")
    assert status_name((await flows.manage("Terminate", "one", request_id="once")).status) == "TERMINATED"
