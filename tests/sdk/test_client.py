"""The client on the wire: what travels together, what is refused, and how results come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from stepwell import (
    CallFailed,
    Client,
    EventEntry,
    Instance,
    InstanceStatus,
    NewInstance,
    PayloadInvalid,
    StepEntry,
    WorkflowEntrypoint,
    WorkflowFailed,
    WorkflowTerminated,
)
from stepwell.v1 import errors_pb2
from stepwell.v1 import workflows_pb2 as wf
from stepwell.v1.common_pb2 import Failure, Payload
from tests.sdk.fake_server import FakeServer


@dataclass
class Params:
    sku: int


@dataclass
class Result:
    total: int


class Order(WorkflowEntrypoint[Params, Result]):
    name = "order"


def instance(id: str, status: Any, revision: int = 1, **fields: Any) -> wf.Instance:
    return wf.Instance(workflow="order", instance_id=id, status=status, revision=revision, **fields)


def complete(id: str, total: int = 1, revision: int = 1) -> wf.Instance:
    return instance(id, wf.INSTANCE_STATUS_COMPLETE, revision, output=Payload(json=f'{{"total":{total}}}'))


def refusing(id: str, reason: Any) -> Any:
    error = errors_pb2.ItemError(code=6, reason=reason, message="refused", metadata={"instance_id": id})
    return lambda asked: error if asked == id else None


async def test_creates_that_are_made_together_travel_together(server: FakeServer, client: Client) -> None:
    orders = client.workflow(Order)

    created = await asyncio.gather(*(orders.create(id=f"o-{n}", params=Params(n)) for n in range(250)))

    assert [handle.id for handle in created] == [f"o-{n}" for n in range(250)]
    assert [len(request.items) for request in server.workflows.creates] == [100, 100, 50]
    items = [item for request in server.workflows.creates for item in request.items]
    assert len({item.request_id for item in items}) == 250
    assert items[7].params.json == '{"sku":7}'
    assert server.workflows.creates[0].on_existing == wf.ON_EXISTING_ERROR


async def test_one_refusal_reaches_its_own_caller_only(server: FakeServer, client: Client) -> None:
    server.workflows.refuse = refusing("b", errors_pb2.ERROR_REASON_INSTANCE_ID_ALREADY_EXISTS)
    orders = client.workflow("order")

    a, b, c = await asyncio.gather(*(orders.create(id=id) for id in "abc"), return_exceptions=True)

    assert isinstance(b, CallFailed)
    assert (b.code, b.reason) == (grpc.StatusCode.ALREADY_EXISTS, "INSTANCE_ID_ALREADY_EXISTS")
    assert not isinstance(a, BaseException) and not isinstance(c, BaseException)


def unavailable_at_first(id: str) -> Any:
    """What a server says of one item whose commit it did not hear of: it may be stored, or not."""
    reason = errors_pb2.ERROR_REASON_DATABASE_UNAVAILABLE
    errors = [errors_pb2.ItemError(code=14, reason=reason, message="the outcome is unknown")]
    return lambda asked: errors.pop() if errors and asked == id else None


@pytest.mark.client_tuning(pauses=lambda: iter([5]))  # which none of the others would wait for
async def test_a_create_whose_outcome_is_unknown_is_repeated_and_the_others_do_not_wait(
    server: FakeServer, client: Client
) -> None:
    server.workflows.refuse = unavailable_at_first("b")
    orders = client.workflow("order")

    a, b, c = (asyncio.create_task(orders.create(id=id)) for id in "abc")
    assert {handle.id for handle in await asyncio.gather(a, c)} == {"a", "c"}
    assert not b.done()
    b.cancel()


async def test_what_was_unavailable_in_a_batch_is_repeated_under_its_own_request_id(
    server: FakeServer, client: Client
) -> None:
    orders = client.workflow("order")
    for calls in (lambda: orders.create(id="b"), lambda: orders.create_batch([{"id": "a"}, {"id": "b"}])):
        server.workflows.creates.clear()
        server.workflows.refuse = unavailable_at_first("b")
        await calls()
        first, second = server.workflows.creates
        assert list(second.items) == [item for item in first.items if item.instance_id == "b"]
        assert second.on_existing == first.on_existing


async def test_so_is_an_event(server: FakeServer, client: Client) -> None:
    order = await client.workflow("order").create(id="b")
    server.workflows.refuse = unavailable_at_first("b")

    await order.send_event("tick")

    first, second = server.workflows.events
    assert list(second.items) == list(first.items)


async def test_a_create_that_waits_is_a_call_of_its_own(server: FakeServer, client: Client) -> None:
    await client.workflow(Order).create(id="x", params=Params(1), labels={"a": "b"}, wait="5 seconds")

    (request,) = server.workflows.calls
    assert (request.wait.seconds, request.labels["a"], bool(request.request_id)) == (5, "b", True)


async def test_an_end_that_was_waited_for_is_not_asked_for_again(server: FakeServer, client: Client) -> None:
    failure = Failure(name="PaymentDeclined", message="no money")
    server.workflows.instances["paid"] = complete("paid", 5)
    server.workflows.instances["declined"] = instance("declined", wf.INSTANCE_STATUS_ERRORED, failure=failure)
    orders = client.workflow(Order)

    paid = await orders.create(id="paid", wait="5 seconds")
    declined = await orders.create(id="declined", wait="5 seconds")

    assert await paid.result() == Result(5)
    with pytest.raises(WorkflowFailed, match="no money"):
        await declined.result()
    assert server.workflows.watches == []
    assert (await paid.status()).output == Result(5)


@pytest.mark.parametrize("restarts", [True, False], ids=["restarted", "still running"])
async def test_a_run_that_has_not_ended_yet_is_waited_for(server: FakeServer, client: Client, restarts: bool) -> None:
    at_first = complete("x", 1) if restarts else instance("x", wf.INSTANCE_STATUS_RUNNING)
    server.workflows.instances["x"] = at_first
    order = await client.workflow(Order).create(id="x", wait="1 second")
    if restarts:
        await order.restart()

    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    server.workflows.change(complete("x", 9, revision=5))

    assert await wait == Result(9)


async def test_a_batch_leaves_out_what_exists(server: FakeServer, client: Client) -> None:
    server.workflows.existing = {"b"}
    batch = [{"id": "a", "params": {"sku": 1}}, NewInstance(id="b"), NewInstance(id="c", labels={"x": "y"})]

    created = await client.workflow("order").create_batch(batch)

    assert [handle.id for handle in created] == ["a", "c"]
    assert server.workflows.creates[0].on_existing == wf.ON_EXISTING_SKIP
    assert await client.workflow("order").create_batch([]) == []


async def test_a_large_batch_is_split_by_items_and_by_bytes(server: FakeServer, client: Client) -> None:
    await client.workflow("order").create_batch({"id": f"i-{n}"} for n in range(150))
    await client.workflow("order").create_batch({"id": f"b-{n}", "params": "x" * 1_000_000} for n in range(4))

    assert [len(request.items) for request in server.workflows.creates] == [100, 50, 3, 1]


async def test_events_travel_together_in_order(server: FakeServer, client: Client) -> None:
    server.workflows.instances["x"] = instance("x", wf.INSTANCE_STATUS_RUNNING)
    order = await client.workflow(Order).get("x")

    await asyncio.gather(*(order.send_event("tick", {"n": n}) for n in range(3)))

    assert [item.payload.json for item in server.workflows.events[0].items] == ['{"n":0}', '{"n":1}', '{"n":2}']


async def test_what_cannot_be_sent_is_refused_before_it_is(server: FakeServer, client: Client) -> None:
    with pytest.raises(PayloadInvalid):
        await client.workflow("order").create(params={"when": object()})

    with pytest.raises(CallFailed, match="INVALID_INSTANCE_ID"):
        await client.workflow("order").create(id="")
    with pytest.raises(CallFailed, match="INVALID_INSTANCE_ID"):
        await client.workflow("order").create_batch([{"id": "fine"}, {"id": ""}])

    assert server.workflows.creates == []


async def test_a_batch_is_split_as_the_server_wants_it(server: FakeServer, client: Client) -> None:
    server.workflows.most_items = 4
    orders = client.workflow("order")

    created = await orders.create_batch({"id": f"i-{n}"} for n in range(10))
    assert [handle.id for handle in created] == [f"i-{n}" for n in range(10)]
    assert [len(request.items) for request in server.workflows.creates] == [10, 4, 4, 2]

    await asyncio.gather(*(orders.create(id=f"c-{n}") for n in range(6)))
    assert [len(request.items) for request in server.workflows.creates[4:]] == [4, 2]


async def test_every_id_of_a_batch_is_looked_at_before_the_first_is_sent(server: FakeServer, client: Client) -> None:
    batch = [*({"id": f"i-{n}"} for n in range(150)), {"id": "not an id"}]

    with pytest.raises(CallFailed, match="INVALID_INSTANCE_ID"):
        await client.workflow("order").create_batch(batch)

    assert server.workflows.creates == []


async def test_an_instance_that_is_not_there_is_a_failed_call(client: Client) -> None:
    with pytest.raises(CallFailed) as failed:
        await client.workflow(Order).get("nobody")

    assert failed.value.code is grpc.StatusCode.NOT_FOUND


def test_a_failed_call_names_what_it_is_about() -> None:
    failed = CallFailed(
        grpc.StatusCode.NOT_FOUND, "there is no such step", "STEP_NOT_FOUND", {"step": "ship", "at": "1"}
    )

    assert str(failed) == "there is no such step (STEP_NOT_FOUND: at=1, step=ship)"


async def test_a_status_is_typed(server: FakeServer, client: Client) -> None:
    server.workflows.instances["x"] = complete("x", 5)

    status = await (await client.workflow(Order).get("x")).status()

    assert (status.status, status.output, status.error) == ("complete", Result(5), None)
    assert status.status.is_terminal


async def test_all_results_share_one_stream(server: FakeServer, client: Client) -> None:
    created = [await client.workflow(Order).create(id=id) for id in "abc"]
    waits = asyncio.gather(*(handle.result() for handle in created))
    await server.workflows.until_watched(1, targets=3)

    server.workflows.change(instance("a", wf.INSTANCE_STATUS_RUNNING), complete("b", 2), complete("c", 3))
    server.workflows.change(complete("a", 1, revision=2))

    assert await waits == [Result(1), Result(2), Result(3)]
    assert len(server.workflows.watchers) == 1


async def test_a_result_that_is_an_error_is_raised(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    waits = asyncio.gather(order.result(), order.result(), return_exceptions=True)
    await server.workflows.until_watched(1)
    failure = Failure(name="PaymentDeclined", message="no money")
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_ERRORED, failure=failure))

    for error in await waits:
        assert isinstance(error, WorkflowFailed)
        assert (error.name, error.message) == ("PaymentDeclined", "no money")


async def test_so_is_the_end_of_a_terminated_instance(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_TERMINATED))

    with pytest.raises(WorkflowTerminated):
        await wait


async def test_a_result_is_waited_for_only_so_long_and_then_dropped(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")

    with pytest.raises(TimeoutError, match=r"^order x has not ended within 0\.02 seconds: it is queued$"):
        await order.result(timeout=20)

    await server.workflows.until_watched(2)
    assert [target.instance_id for target in server.workflows.watches[-1].drop] == ["x"]


async def test_a_result_that_does_not_come_in_time_says_where_its_instance_stands(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = await client.workflow(Order).create(id="x")
    limits: list[asyncio.Timeout] = []
    limit_of = asyncio.timeout

    def timeout(seconds: float | None) -> asyncio.Timeout:
        limit = limit_of(seconds)
        limits.extend([limit] if seconds == 3600 else [])
        return limit

    monkeypatch.setattr("asyncio.timeout", timeout)
    wait = asyncio.create_task(order.result(timeout="1 hour"))
    await server.workflows.until_watched(1)
    changes = order.watch()  # which is told after the wait is
    change = asyncio.create_task(anext(changes))
    await server.workflows.until_watched(2)
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_PAUSED))
    assert (await change).instance.status is InstanceStatus.PAUSED
    (limit,) = limits
    limit.reschedule(0)

    with pytest.raises(TimeoutError, match=r"^order x has not ended within 1 hour: it is paused$"):
        await wait
    await changes.aclose()  # type: ignore[attr-defined]


async def test_who_comes_later_is_sent_the_present_state_too(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    first = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=4))
    changes = order.watch()
    second = asyncio.create_task(anext(changes))
    await server.workflows.until_watched(2)
    assert server.workflows.watches[1].add[0].known_revision == 0

    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=4))
    assert (await second).instance.status is InstanceStatus.RUNNING
    server.workflows.change(complete("x", 9, revision=5))
    assert await first == Result(9)
    await changes.aclose()  # type: ignore[attr-defined]


async def test_a_lost_watch_goes_on_from_what_was_seen(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=4))
    server.workflows.watchers[-1].put_nowait(wf.WatchInstancesResponse(draining=True))

    await server.workflows.until_watched(2)
    assert server.workflows.watches[1].add[0].known_revision == 4
    server.workflows.change(complete("x", 9, revision=5))
    assert await wait == Result(9)


async def first_of(order: Instance[Any]) -> Any:
    return await anext(order.watch())


async def test_closing_the_client_ends_the_waits_for_results(server: FakeServer) -> None:
    async with Client(server.address) as client:
        order = await client.workflow(Order).create(id="x")
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(order.result()), asyncio.create_task(first_of(order))]
        await server.workflows.until_watched(1)

    for wait in waits:
        with pytest.raises(RuntimeError, match="the client is not open"):
            await wait


async def test_a_stream_that_ends_for_an_unforeseen_reason_fails_the_waits_for_results(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = await client.workflow(Order).create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    monkeypatch.setattr("stepwell.client.watches.Follower.tell", lambda *_: 1 / 0)

    server.workflows.change(complete("x"))
    with pytest.raises(ExceptionGroup) as failed:
        await wait
    assert isinstance(failed.value.exceptions[0], ZeroDivisionError)


async def test_watching_shows_each_newer_state_until_the_end(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    step = wf.Step(name="a", type=wf.STEP_TYPE_DO, status=wf.STEP_STATUS_COMPLETED, attempts=1)
    changes = order.watch(steps=True)
    first = asyncio.create_task(anext(changes))
    await server.workflows.until_watched(1)
    assert server.workflows.watches[0].add[0].include_steps

    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=1), steps=(step,))
    assert [entry.name for entry in (await first).steps] == ["a"]
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=1))
    server.workflows.change(complete("x", revision=2))
    assert [change.instance.status async for change in changes] == [InstanceStatus.COMPLETE]


async def test_a_state_that_comes_in_pieces_is_told_when_it_is_whole(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    a, b = (wf.Step(name=name, status=wf.STEP_STATUS_COMPLETED, attempts=1) for name in "ab")
    first = wf.InstanceChange(instance=complete("x", 7), steps=[a], more_steps=True)
    last = wf.InstanceChange(instance=instance("x", wf.INSTANCE_STATUS_COMPLETE), steps=[b])
    told = asyncio.create_task(anext(order.watch(steps=True)))
    result = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)

    server.workflows.watchers[-1].put_nowait(wf.WatchInstancesResponse(changes=[first]))
    assert await result == Result(7)  # needs no steps
    assert not told.done()
    server.workflows.watchers[-1].put_nowait(wf.WatchInstancesResponse(draining=True))
    await server.workflows.until_watched(2)
    assert server.workflows.watches[-1].add[0].known_revision == 0  # what is not whole has to come again

    server.workflows.watchers[-1].put_nowait(wf.WatchInstancesResponse(changes=[first, last]))
    change = await told
    assert [entry.name for entry in change.steps] == ["a", "b"]
    assert change.instance.output == Result(7)  # of the first piece: the others come without


async def test_steps_that_are_sent_again_to_somebody_else_are_told_once(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    step = wf.Step(name="a", status=wf.STEP_STATUS_COMPLETED, attempts=1)
    changes = order.watch(steps=True)
    first = asyncio.create_task(anext(changes))
    await server.workflows.until_watched(1)

    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=4), steps=(step,))
    assert [entry.name for entry in (await first).steps] == ["a"]
    server.workflows.change(instance("x", wf.INSTANCE_STATUS_RUNNING, revision=4), steps=(step,))
    server.workflows.change(complete("x", revision=5), steps=(step,))

    assert [(change.instance.status, change.steps) async for change in changes] == [(InstanceStatus.COMPLETE, ())]


async def test_an_instance_that_cannot_be_followed_fails_its_waiters(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    error = errors_pb2.ItemError(code=5, reason=errors_pb2.ERROR_REASON_INSTANCE_NOT_FOUND, message="gone")
    refusal = wf.WatchRefusal(target=server.workflows.watches[0].add[0], error=error)
    refused = wf.WatchInstancesResponse(changes=[wf.InstanceChange(refusal=refusal)])
    server.workflows.watchers[-1].put_nowait(refused)

    with pytest.raises(CallFailed, match="INSTANCE_NOT_FOUND"):
        await wait


async def test_verbs_carry_a_request_id(server: FakeServer, client: Client) -> None:
    order = await client.workflow(Order).create(id="x")
    await order.pause()
    await order.restart(from_step="pay")

    pause, restart = server.workflows.calls
    assert pause.request_id and restart.request_id and pause.request_id != restart.request_id
    assert (restart.workflow, restart.instance_id, restart.from_step) == ("order", "x", "pay")


async def test_lists_go_through_all_pages(server: FakeServer, client: Client) -> None:
    listing = client.workflow(Order).list(status=[InstanceStatus.PAUSED], labels={"a": "b"}, created_from=0)
    found = [(instance.id, instance.status) async for instance in listing]

    assert found == [("i0", InstanceStatus.PAUSED), ("i1", InstanceStatus.UNKNOWN)]
    request = server.workflows.calls[0]
    assert (list(request.statuses), dict(request.labels)) == ([wf.INSTANCE_STATUS_PAUSED], {"a": "b"})
    assert (request.HasField("created_from"), request.HasField("created_before")) == (True, False)


async def test_a_history_is_of_one_run_whatever_happens_meanwhile(server: FakeServer, client: Client) -> None:
    step, event = await (await client.workflow(Order).create(id="x")).history()

    assert isinstance(step, StepEntry) and (step.name, step.type, step.status) == ("a", "do", "completed")
    assert isinstance(event, EventEntry) and event.type == "e"
    first, second = server.workflows.calls
    assert (first.HasField("run_number"), second.run_number) == (False, 2)


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Client("127.0.0.1:1").workflow("order").create()


OUTSIDE_OF_ITS_BLOCK = """
import asyncio
from stepwell import Client

async def program():
    client = Client()
    order = client.workflow("order")
    calls = [order.create(id="x"), order.get("x"), client.hook("receipt").trigger()]
    print(*[type(error).__name__ for error in await asyncio.gather(*calls, return_exceptions=True)])

asyncio.run(program())
"""


def test_it_says_so_even_where_assertions_are_left_out() -> None:
    told = subprocess.run(
        [sys.executable, "-O", "-c", OUTSIDE_OF_ITS_BLOCK], check=True, capture_output=True, text=True
    )

    assert told.stdout.split() == ["RuntimeError"] * 3
