"""WorkflowService: create, look, manage, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.v1 import namespaces_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows, status_name, step_status
from tests.support.servers.servers import Served
from tests.support.workers.frames import begin, done, fail, finish, opening, payload, sleep, suspend, wait_for
from tests.support.workers.workers import HandWorker, Job, grant

DEEP = "[" * 65 + "]" * 65
LONG = '"' + "x" * (1024 * 1024) + '"'


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts "order" and has no credit yet."""
    return await hire(credit=0)


async def held(worker: HandWorker, flows: Flows, instance_id: str = "one") -> Job:
    """An instance that the worker holds."""
    await flows.create(instance_id)
    await worker.say(grant(1))
    return await worker.take()


# ---- create


async def test_a_created_instance_is_queued_as_it_was_asked_for(worker: HandWorker, flows: Flows) -> None:
    created = await flows.create("one", '{"sku":7}', labels={"team": "a", "kind": ""})

    assert (created.namespace, created.workflow, created.instance_id) == ("default", "order", "one")
    assert (status_name(created.status), created.run_number, created.params.json) == ("QUEUED", 0, '{"sku":7}')
    assert dict(created.labels) == {"team": "a", "kind": ""}
    assert created.created_at == created.updated_at and not created.HasField("started_at")
    assert await flows.get("one") == created


async def test_an_instance_without_an_id_gets_one_of_its_own(worker: HandWorker, flows: Flows) -> None:
    ids = {(await flows.create()).instance_id for _ in range(3)}

    assert len(ids) == 3
    assert {(await flows.get(one)).instance_id for one in ids} == ids


async def test_an_id_that_exists_is_refused_whatever_became_of_it(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")
    for verb in ("Pause", "Terminate"):
        error = await refusal(flows.create("one"))
        assert (error.code.name, error.reason) == ("ALREADY_EXISTS", "INSTANCE_ID_ALREADY_EXISTS")
        assert error.metadata == {"workflow": "order", "instance_id": "one"}
        await flows.manage(verb, "one")

    assert (await refusal(flows.create("one"))).reason == "INSTANCE_ID_ALREADY_EXISTS"


async def test_two_creates_of_one_id_at_once_make_one_instance(worker: HandWorker, flows: Flows) -> None:
    outcomes = await asyncio.gather(*(flows.create("one", str(number)) for number in range(8)), return_exceptions=True)

    made = [one for one in outcomes if isinstance(one, pb.Instance)]
    assert len(made) == 1
    assert (await flows.get("one")).params == made[0].params


async def test_a_workflow_that_nobody_registered_cannot_be_started(flows: Flows, worker: HandWorker) -> None:
    for name in ("nothing", "Order", "x" * 64):
        flows.workflow = name
        error = await refusal(flows.create("one"))
        assert (error.code.name, error.reason) == ("NOT_FOUND", "WORKFLOW_NOT_FOUND")


async def test_a_workflow_whose_workers_are_away_can_be_started(worker: HandWorker, flows: Flows, hire: Hire) -> None:
    await worker.goodbye()
    assert await flows.create("one")

    assert (await (await hire()).take()).task.key == "one"


async def test_an_id_that_breaks_the_pattern_is_refused(worker: HandWorker, flows: Flows) -> None:
    for bad in ("-a", "a b", "a.b", "a:b", "a/b", "..", "ä", "😀", "a\u202eb", "a\n", "a" * 101):
        error = await refusal(flows.create(bad))
        assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "INVALID_INSTANCE_ID"), bad
        assert (await refusal(flows.event(bad, "go"))).reason == "INVALID_INSTANCE_ID", bad


async def test_the_longest_id_is_taken(worker: HandWorker, flows: Flows) -> None:
    assert (await flows.create("_" * 100)).instance_id == "_" * 100


REFUSED = {
    LONG: "PAYLOAD_TOO_LARGE",
    DEEP: "PAYLOAD_TOO_DEEP",
    "[" * 100_000: "PAYLOAD_TOO_DEEP",
    "NaN": "PAYLOAD_NOT_JSON",
    '{"a":-Infinity}': "PAYLOAD_NOT_JSON",
    "{": "PAYLOAD_NOT_JSON",
    "1 2": "PAYLOAD_NOT_JSON",
    "'a'": "PAYLOAD_NOT_JSON",
    '"\\ud83d"': "PAYLOAD_NOT_JSON",
}


async def test_a_payload_that_breaks_a_rule_is_refused_for_params_and_events(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    params = [await refusal(flows.create("two", json)) for json in REFUSED]
    events = [await refusal(flows.event("one", "go", json)) for json in REFUSED]

    assert [error.reason for error in params] == [error.reason for error in events] == [*REFUSED.values()]
    assert {error.code.name for error in (*params, *events)} == {"INVALID_ARGUMENT"}


async def test_payloads_come_back_byte_for_byte(worker: HandWorker, flows: Flows) -> None:
    odd = [
        '{"a":1,"a":2}',
        " [1e999999, 9007199254740993] ",
        '"\\u0000"',
        "[" * 64 + "]" * 64,
        '"' + "x" * 1048574 + '"',
    ]
    for number, json in enumerate(odd):
        await flows.create(f"i{number}", json)

    assert [(await flows.get(f"i{number}")).params.json for number in range(len(odd))] == odd


async def test_bytes_are_kept_with_the_word_on_how_to_read_them(worker: HandWorker, flows: Flows) -> None:
    params = pb.Instance().params
    params.binary, params.encoding = bytes(range(256)), "aes-gcm/json"
    request = pb.CreateInstanceRequest(**flows.key("one"), params=params)

    await flows.stub.CreateInstance(request)

    assert (await flows.get("one")).params == params


async def test_labels_have_limits(worker: HandWorker, flows: Flows) -> None:
    for labels in ({f"k{n}": "v" for n in range(33)}, {"": "v"}, {"k" * 101: "v"}, {"k": "v" * 101}):
        error = await refusal(flows.create("one", labels=labels))
        assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", "labels")

    assert await flows.create("two", labels={("k" * 98 + f"{n:02}"): "v" * 100 for n in range(32)})


# ---- create and wait


async def test_a_create_that_waits_answers_with_the_result(worker: HandWorker, flows: Flows) -> None:
    await worker.say(grant(1))
    creating = asyncio.create_task(flows.create("one", wait=30))

    await (await worker.take()).tell(finish("42"))

    instance = await creating
    assert (status_name(instance.status), instance.output.json) == ("COMPLETE", "42")


async def test_a_create_that_has_waited_long_enough_answers_with_what_is(worker: HandWorker, flows: Flows) -> None:
    assert status_name((await flows.create("one", wait=0.05)).status) == "QUEUED"
    assert (await refusal(flows.create("two", wait=61))).reason == "DURATION_OUT_OF_RANGE"


async def test_a_wait_ends_with_the_instance_whatever_its_end(worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    waiting = asyncio.create_task(flows.wait("one"))
    await job.tell(fail("PaymentDeclined", "no money"))

    instance = await waiting
    assert (status_name(instance.status), instance.failure.name) == ("ERRORED", "PaymentDeclined")
    assert instance.failure.message == "no money" and not instance.HasField("output")
    assert instance.HasField("ended_at") and instance.HasField("started_at")
    assert await flows.wait("one") == instance, "at once"


async def test_a_wait_that_passes_is_not_an_error(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    assert status_name((await flows.wait("one", 0.05)).status) == "QUEUED"
    assert (await refusal(flows.wait("two"))).reason == "INSTANCE_NOT_FOUND"
    assert (await refusal(flows.wait("one", 61))).reason == "DURATION_OUT_OF_RANGE"


# ---- look


async def test_a_view_says_how_much_is_returned(worker: HandWorker, flows: Flows) -> None:
    await (await held(worker, flows)).tell(finish("42"))

    basic = await flows.get("one", pb.INSTANCE_VIEW_BASIC)
    full = await flows.get("one", pb.INSTANCE_VIEW_FULL)
    unsaid = await flows.get("one", pb.INSTANCE_VIEW_UNSPECIFIED)

    assert not basic.HasField("params") and not basic.HasField("output")
    assert (full.params.json, full.output.json) == ("{}", "42")
    assert unsaid == full
    full.ClearField("params")
    full.ClearField("output")
    assert full == basic


async def test_what_is_not_there_is_not_found_by_any_call(worker: HandWorker, flows: Flows) -> None:
    calls = [
        flows.get("nobody"),
        flows.event("nobody", "go"),
        flows.history("nobody"),
        *(flows.manage(verb, "nobody") for verb in ("Pause", "Resume", "Terminate", "Restart")),
    ]

    errors = [await refusal(call) for call in calls]

    assert {(error.code.name, error.reason) for error in errors} == {("NOT_FOUND", "INSTANCE_NOT_FOUND")}


async def test_namespaces_do_not_see_each_other(worker: HandWorker, flows: Flows, server: Served, hire: Hire) -> None:
    await NamespaceServiceStub(server.channel).CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name="team"))
    there, elsewhere = await hire(namespace="team", credit=0), Flows(server.channel, namespace="team")
    await flows.create("one", "1")
    await elsewhere.create("one", "2")
    await elsewhere.create("two")

    assert [(await one.get("one")).params.json for one in (flows, elsewhere)] == ["1", "2"]
    assert (await refusal(flows.get("two"))).message == (await refusal(flows.get("none"))).message
    await there.say(grant(5))
    await there.beat()
    assert {(await there.take()).task.key for _ in range(2)} == {"one", "two"}
    assert await flows.status("one") == "QUEUED"
    assert [one.instance_id for one in (await flows.list()).instances] == ["one"]
    assert (await refusal(Flows(server.channel, namespace="nowhere").create("one"))).reason == "NAMESPACE_NOT_FOUND"


async def test_a_wake_time_is_shown_while_an_instance_waits(worker: HandWorker, flows: Flows) -> None:
    acks = await (await held(worker, flows)).report(sleep("nap", 3600), suspend())

    assert (await flows.get("one")).wake_at == acks[0].wake_at


async def test_registered_workflows_are_listed_with_their_workers(hire: Hire, flows: Flows) -> None:
    first, second = await hire("b", "a"), await hire("b")
    answer = await flows.stub.ListWorkflows(pb.ListWorkflowsRequest())
    assert [(one.name, one.worker_count) for one in answer.workflows] == [("a", 1), ("b", 2)]

    await first.goodbye()
    page = await flows.stub.ListWorkflows(pb.ListWorkflowsRequest(page_size=1))
    assert [(one.name, one.worker_count) for one in page.workflows] == [("a", 0)]
    rest = await flows.stub.ListWorkflows(pb.ListWorkflowsRequest(page_size=1, page_token=page.next_page_token))
    assert [(one.name, one.worker_count) for one in rest.workflows] == [("b", 1)]
    assert rest.next_page_token == "" and (await second.beat()).credit == 1


# ---- manage


async def test_what_has_ended_only_a_restart_can_change(worker: HandWorker, flows: Flows) -> None:
    await (await held(worker, flows)).tell(finish())

    for call in (flows.manage("Pause", "one"), flows.manage("Terminate", "one"), flows.event("one", "go")):
        error = await refusal(call)
        assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "INSTANCE_TERMINAL")
    assert status_name((await flows.manage("Resume", "one")).status) == "COMPLETE"
    restarted = await flows.manage("Restart", "one")

    assert (status_name(restarted.status), restarted.run_number) == ("QUEUED", 1)
    assert not restarted.HasField("output") and not restarted.HasField("ended_at")


async def test_pause_and_resume_can_be_said_twice(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    said = [await flows.manage(verb, "one") for verb in ("Pause", "Pause", "Resume", "Resume")]

    assert [status_name(one.status) for one in said] == ["PAUSED", "PAUSED", "QUEUED", "QUEUED"]


async def test_a_restart_runs_again_with_the_same_params_and_nothing_else(worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    await flows.event("one", "go")
    await job.tell(done("a"))

    await flows.manage("Restart", "one")
    await worker.say(grant(1))
    again = await worker.take()

    assert (again.run.run_number, again.run.params.json, list(again.run.steps)) == (1, "{}", [])
    await again.tell(wait_for("w", "go"))
    await worker.beat(again)
    assert not worker.has("resolved"), "events are not carried over"
    assert [*(await flows.steps("one", run_number=0))] == ["a"]


async def test_a_restart_from_a_step_keeps_what_was_completed_before_it(worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    await job.report(done("a"), begin(opening("slow")), done("b"), sleep("nap", 0))
    await job.resolved()
    await job.report(done("c"), done("slow"), finish())

    restarted = await flows.manage("Restart", "one", from_step="c")
    await worker.say(grant(1))
    again = await worker.take()

    assert restarted.run_number == 1
    assert {name: step_status(step) for name, step in again.steps.items()} == {
        "a": "COMPLETED",
        "b": "COMPLETED",
        "nap": "COMPLETED",
    }
    error = await refusal(flows.manage("Restart", "one", from_step="z"))
    assert (error.code.name, error.reason) == ("NOT_FOUND", "STEP_NOT_FOUND")


# ---- events


async def test_an_event_says_where_its_instance_stands(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    sent = await flows.event("one", "go", '{"ok":true}')

    assert (sent.event.type, status_name(sent.status)) == ("go", "QUEUED")
    assert sent.event.event_id > 0 and not sent.event.HasField("payload")
    (entry,) = (await flows.history("one")).entries
    assert entry.event.payload == payload('{"ok":true}') and not entry.event.HasField("delivered_at")


async def test_an_event_type_that_breaks_the_pattern_is_refused(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one")

    for bad in ("", "-a", "a b", "a.b", "ä", "go\n", "a" * 101):
        error = await refusal(flows.event("one", bad))
        assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "INVALID_EVENT_TYPE"), bad


async def test_an_instance_keeps_so_many_events_and_not_one_more(
    start_server: object, database_url: str, hire_at: Hire
) -> None:
    server = await start_server(database_url, limits={"pending_events": 3})  # type: ignore[operator]
    flows, worker = Flows(server.channel), await hire_at(server)
    await flows.create("one")
    job = await worker.take()
    for _ in range(3):
        await flows.event("one", "go")

    error = await refusal(flows.event("one", "go"))
    await job.tell(wait_for("w", "go"))
    await job.resolved()

    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_PENDING_EVENTS")
    assert await flows.event("one", "go"), "one was taken, so there is room"


async def test_an_event_that_a_step_waits_for_gets_past_any_number_of_others(
    start_server: object, database_url: str, hire_at: Hire
) -> None:
    server = await start_server(database_url, limits={"pending_events": 3})  # type: ignore[operator]
    flows, worker = Flows(server.channel), await hire_at(server)
    await flows.create("one")
    job = await worker.take()
    await job.tell(wait_for("first", "go"))
    await job.report(wait_for("second", "go"), suspend())
    await flows.manage("Pause", "one")
    for _ in range(3):
        await flows.event("one", "other")

    for number in (1, 2):
        await flows.event("one", "go", str(number))
    errors = [await refusal(flows.event("one", event_type)) for event_type in ("go", "other")]

    assert [one.reason for one in errors] == ["LIMIT_PENDING_EVENTS"] * 2, "one for each that waits, and no more"
    await worker.say(grant(1))
    await flows.manage("Resume", "one")
    again = await worker.take()
    assert [again.steps[name].result.json for name in ("first", "second")] == ["1", "2"]


async def test_a_run_has_so_many_steps_and_not_one_more(start_server: object, database_url: str, hire_at: Hire) -> None:
    server = await start_server(database_url, limits={"steps_per_run": 2})  # type: ignore[operator]
    flows, worker = Flows(server.channel), await hire_at(server)
    await flows.create("one")
    job = await worker.take()
    await job.report(done("a"), done("b"), sleep("nap", 0))

    assert await job.refused(done("c")) == "MAX_STEPS_EXCEEDED"
    assert await job.refused(wait_for("w", "go")) == "MAX_STEPS_EXCEEDED"
    assert (await job.tell(finish())).released


async def test_a_namespace_can_lower_the_limits_for_itself(server: Served, hire: Hire) -> None:
    limits = namespaces_pb2.NamespaceLimits(max_payload_bytes=10, max_steps_per_run=1, max_pending_events=1)
    request = namespaces_pb2.CreateNamespaceRequest(name="small", limits=limits)
    await NamespaceServiceStub(server.channel).CreateNamespace(request)
    flows, worker = Flows(server.channel, namespace="small"), await hire(namespace="small")
    await flows.create("one", '"12345678"')
    job = await worker.take()
    await flows.event("one", "go")

    assert (await refusal(flows.create("two", '"123456789"'))).reason == "PAYLOAD_TOO_LARGE"
    assert (await refusal(flows.event("one", "go"))).reason == "LIMIT_PENDING_EVENTS"
    assert await job.refused(done("a", '"123456789"')) == "PAYLOAD_TOO_LARGE"
    await job.tell(done("a", '"12345678"'))
    assert await job.refused(done("b")) == "MAX_STEPS_EXCEEDED"
