"""Traces: what comes with a create, an event or a hook reaches the code that is executed, unread."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.v1 import transactions_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, item
from tests.support.servers.servers import Served
from tests.support.workers.frames import suspend, wait_for
from tests.support.workers.workers import HandWorker, UnaryWorker

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1, b=2 ~"}
OTHER = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00", "baggage": "user=7"}


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts the workflow "order" and the hook "note"."""
    return await hire(hooks=("note",), credit=9)


async def test_an_instance_is_handed_out_with_the_trace_of_its_creation(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one", trace=TRACE)
    at_birth = await worker.take()
    await at_birth.report(wait_for("go", "go"), suspend())

    await flows.event("one", "go")
    later = await worker.take()

    assert [dict(job.task.trace) for job in (at_birth, later)] == [TRACE, TRACE]
    assert (await flows.get("one")).trace == TRACE
    assert not (await flows.get("one", pb.INSTANCE_VIEW_BASIC)).trace


async def test_each_instance_of_a_batch_has_a_trace_of_its_own(hire: Hire, flows: Flows, server: Served) -> None:
    await hire(credit=0)
    await flows.create_many(flows.item("one", trace=TRACE), flows.item("two", trace=OTHER), flows.item("three"))
    caller = UnaryWorker(server.channel)
    await caller.register()

    claimed = {frame.task.key: dict(frame.task.trace) for frame in await caller.claim(3)}

    assert claimed == {"one": TRACE, "two": OTHER, "three": {}}


async def test_a_step_that_gets_an_event_gets_its_trace(worker: HandWorker, flows: Flows) -> None:
    await flows.create("one", trace=TRACE)
    job = await worker.take()
    await job.tell(wait_for("go", "go"))

    await flows.event("one", "go", trace=OTHER)

    assert (await job.resolved())["go"].trace == OTHER
    (event,) = [one.event for one in (await flows.history("one")).entries if one.HasField("event")]
    assert event.trace == OTHER


async def test_a_hook_is_handed_out_with_the_trace_of_its_trigger(worker: HandWorker, triggers: Triggers) -> None:
    await triggers.trigger("one", trace=TRACE)

    assert (await worker.take()).task.trace == TRACE
    assert (await triggers.get("one")).trace == TRACE


async def test_a_request_that_is_repeated_under_another_trace_is_the_same_request(
    worker: HandWorker, flows: Flows, triggers: Triggers, server: Served
) -> None:
    stub: Any = TransactionServiceStub(server.channel)

    async def ask(trace: dict[str, str]) -> list[object]:
        created = await flows.create(request_id="r1", trace=trace)
        sent = await flows.event(created.instance_id, "go", request_id="r2", trace=trace)
        hook = await triggers.trigger("", request_id="r3", trace=trace)
        operation = transactions_pb2.Operation(trigger_hook=item("", trace=trace))
        done = await stub.Commit(transactions_pb2.CommitRequest(operations=[operation], request_id="r4"))
        return [created.instance_id, sent.event.event_id, hook.hook_id, done.results[0].hook.hook_id]

    first = await ask(TRACE)

    assert await ask(OTHER) == first
    assert (await flows.get(str(first[0]))).trace == TRACE, "the first one stands"


@pytest.mark.parametrize(
    "trace",
    [
        {f"name{number}": "" for number in range(9)},
        {"baggage": "x" * 4090},
        {"": "x"},
        {"Traceparent": "x"},
        {"x" * 65: ""},
        {"a b": "x"},
        {"tracestate": "a\r\nHost: b"},
        {"baggage": "ü"},
    ],
)
async def test_a_trace_that_is_no_trace_is_refused(
    worker: HandWorker, flows: Flows, triggers: Triggers, trace: dict[str, str]
) -> None:
    await flows.create("one")
    calls = [flows.create(trace=trace), flows.event("one", "go", trace=trace)]

    errors = [await refusal(call) for call in calls]

    assert [(one.reason, one.metadata["field"]) for one in errors] == [("INVALID_FIELD", "trace")] * 2
    (result,) = await triggers.trigger_many(item("two", trace=trace))
    assert result.error.metadata["field"] == "trace"
