"""Hooks through the client: what travels together, what never leaves, and what is told of them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell import CallFailed, Client, HookStatus, NewHook, PayloadInvalid, Retry, hook
from stepwell.v1 import common_pb2, errors_pb2
from stepwell.v1 import hooks_pb2 as pb
from tests.sdk.fake_server import FakeServer


@dataclass
class Receipt:
    order: int


@hook("send-receipt", retry=Retry(max_attempts=3))
async def send_receipt(payload: Receipt) -> None: ...


def refusing(id: str) -> Any:
    reason = errors_pb2.ERROR_REASON_HOOK_ID_ALREADY_EXISTS
    error = errors_pb2.ItemError(code=6, reason=reason, message="refused", metadata={"hook_id": id})
    return lambda asked: error if asked == id else None


async def test_triggers_that_are_made_together_travel_together(server: FakeServer, client: Client) -> None:
    receipts = client.hook(send_receipt)

    made = await asyncio.gather(*(receipts.trigger(Receipt(n), id=f"r-{n}") for n in range(250)))

    assert [handle.id for handle in made] == [f"r-{n}" for n in range(250)]
    assert [len(request.items) for request in server.hooks.triggers] == [100, 100, 50]
    items = [item for request in server.hooks.triggers for item in request.items]
    assert len({item.request_id for item in items}) == 250
    assert (items[7].name, items[7].payload.json) == ("send-receipt", '{"order":7}')


async def test_closing_the_client_ends_what_was_not_answered(server: FakeServer) -> None:
    server.hooks.answers = asyncio.Event()
    async with Client(server.address) as client:
        sent = asyncio.create_task(client.hook("send-receipt").trigger())
        await server.hooks.reached.wait()
        queued = asyncio.create_task(client.hook("send-receipt").trigger())
        await asyncio.sleep(0)
    server.hooks.answers.set()

    await asyncio.wait_for(asyncio.wait({sent, queued}), 10)
    assert sent.cancelled() and queued.cancelled()


async def test_large_ones_travel_in_several_messages(server: FakeServer, client: Client) -> None:
    receipts = client.hook("send-receipt")
    big = "x" * 1024 * 1023

    await asyncio.gather(*(receipts.trigger(big) for _ in range(5)))
    await receipts.trigger_batch([NewHook(payload=big) for _ in range(5)])

    assert [len(request.items) for request in server.hooks.triggers] == [3, 2, 3, 2]


async def test_one_refusal_reaches_its_own_caller_only(server: FakeServer, client: Client) -> None:
    server.hooks.refuse = refusing("b")
    receipts = client.hook(send_receipt)

    a, b, c = await asyncio.gather(*(receipts.trigger(id=id) for id in "abc"), return_exceptions=True)

    assert isinstance(b, CallFailed)
    assert (b.code, b.reason) == (grpc.StatusCode.ALREADY_EXISTS, "HOOK_ID_ALREADY_EXISTS")
    assert not isinstance(a, BaseException) and not isinstance(c, BaseException)


async def test_a_hook_without_anything_is_stored_with_the_servers_defaults(server: FakeServer, client: Client) -> None:
    made = await client.hook("send-receipt").trigger()

    (item,) = server.hooks.triggers[0].items
    assert made.id == "made-up"
    assert not (item.HasField("payload") or item.HasField("process_at") or item.HasField("retry") or item.hook_id)


async def test_a_hook_whose_outcome_is_unknown_is_triggered_again_under_its_own_request_id(
    server: FakeServer, client: Client
) -> None:
    receipts = client.hook(send_receipt)
    for calls in (lambda: receipts.trigger(id="b"), lambda: receipts.trigger_batch([{"id": "a"}, {"id": "b"}])):
        server.hooks.triggers.clear()
        errors = [errors_pb2.ItemError(code=14, reason=errors_pb2.ERROR_REASON_DATABASE_UNAVAILABLE)]
        server.hooks.refuse = lambda id, errors=errors: errors.pop() if errors and id == "b" else None
        await calls()
        first, second = server.hooks.triggers
        assert list(second.items) == [item for item in first.items if item.hook_id == "b"]


async def test_the_policy_is_that_of_the_trigger_or_else_of_the_definition(server: FakeServer, client: Client) -> None:
    receipts = client.hook(send_receipt)
    await receipts.trigger()
    await receipts.trigger(retry=Retry(max_attempts=math.inf, delay="2 seconds"))
    await receipts.trigger_batch([NewHook(), NewHook(retry=Retry(limit=0))])

    policies = [item.retry for request in server.hooks.triggers for item in request.items]
    assert [(one.max_attempts, one.unlimited, one.delay.seconds) for one in policies] == [
        (3, False, 0),
        (0, True, 2),
        (3, False, 0),
        (1, False, 0),
    ]


async def test_a_test_of_errors_belongs_to_the_definition(server: FakeServer, client: Client) -> None:
    with pytest.raises(ValueError, match="asked in the worker"):
        await client.hook(send_receipt).trigger(retry=Retry(is_retryable=lambda error: True))
    assert server.hooks.triggers == []


async def test_process_at_is_exact(server: FakeServer, client: Client) -> None:
    """Behaviour 5, as far as the client has a part in it."""
    await client.hook(send_receipt).trigger(process_at=datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
    east = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC).astimezone()
    await client.hook(send_receipt).trigger(process_at=east)

    first, second = [request.items[0].process_at for request in server.hooks.triggers]
    assert first == Timestamp(seconds=1893553445, nanos=678901000)
    assert second == Timestamp(seconds=1893553445)


@pytest.mark.parametrize(
    "wrong",
    [datetime(2030, 1, 1), timedelta(hours=1), "1 hour", 3600, 1893553445.0, True],  # noqa: DTZ001
)
async def test_what_is_not_an_instant_is_refused(server: FakeServer, client: Client, wrong: Any) -> None:
    """Behaviour 9."""
    with pytest.raises(ValueError, match="instant"):
        await client.hook(send_receipt).trigger(process_at=wrong)
    with pytest.raises(ValueError, match="instant"):
        await client.hook(send_receipt).trigger_batch([{}, {"process_at": wrong}])
    assert server.hooks.triggers == []


async def test_a_payload_that_cannot_be_sent_fails_before_anything_is(server: FakeServer, client: Client) -> None:
    """Behaviour 12."""
    with pytest.raises(PayloadInvalid):
        await client.hook("send-receipt").trigger(object())
    with pytest.raises(PayloadInvalid):
        await client.hook("send-receipt").trigger_batch([{"payload": 1}, {"payload": math.nan}])
    assert server.hooks.triggers == []


async def test_an_empty_id_is_not_a_random_one(server: FakeServer, client: Client) -> None:
    with pytest.raises(CallFailed) as refused:
        await client.hook(send_receipt).trigger(id="")
    assert (refused.value.reason, server.hooks.triggers) == ("INVALID_HOOK_ID", [])


async def test_a_batch_is_answered_in_order_and_raises_its_first_refusal(server: FakeServer, client: Client) -> None:
    receipts = client.hook(send_receipt)
    assert [made.id for made in await receipts.trigger_batch([{"id": "b"}, {"id": "a"}])] == ["b", "a"]
    assert await receipts.trigger_batch([]) == []

    server.hooks.refuse = refusing("a")
    with pytest.raises(CallFailed, match="HOOK_ID_ALREADY_EXISTS"):
        await receipts.trigger_batch([{"id": "b"}, {"id": "a"}, {"id": "c"}])


async def test_a_hook_tells_how_it_stands(server: FakeServer, client: Client) -> None:
    server.hooks.hooks["r-1"] = pb.Hook(
        hook_id="r-1",
        name="send-receipt",
        status=pb.HOOK_STATUS_PENDING,
        payload=common_pb2.Payload(json='{"order":7}'),
        attempts=2,
        retry=common_pb2.RetryPolicy(
            max_attempts=5,
            delay=Duration(seconds=1),
            backoff=common_pb2.BACKOFF_LINEAR,
            max_delay=Duration(seconds=60),
        ),
        idempotency_key="key",
        failure=common_pb2.Failure(name="OSError", message="no route"),
        created_at=Timestamp(seconds=1),
        next_attempt_at=Timestamp(seconds=5),
    )

    state = await (await client.hook(send_receipt).get("r-1")).status()

    assert (state.id, state.name, state.status) == ("r-1", "send-receipt", HookStatus.PENDING)
    assert (state.attempts, state.max_attempts, state.payload) == (2, 5, {"order": 7})
    assert state.retry == Retry(
        max_attempts=5, delay=timedelta(seconds=1), backoff="linear", max_delay=timedelta(seconds=60)
    )
    assert (state.error.name, state.error.message) == ("OSError", "no route")  # type: ignore[union-attr]
    assert state.next_attempt_at == datetime.fromtimestamp(5, UTC)
    assert state.ended_at is None and not state.status.is_terminal


async def test_without_a_maximum_there_is_none(server: FakeServer, client: Client) -> None:
    server.hooks.hooks["x"] = pb.Hook(name="send-receipt", retry=common_pb2.RetryPolicy(unlimited=True))
    state = await (await client.hook(send_receipt).get("x")).status()

    assert (state.max_attempts, state.retry.max_attempts) == (None, math.inf)


async def test_a_hook_of_another_name_is_not_found(server: FakeServer, client: Client) -> None:
    server.hooks.hooks["x"] = pb.Hook(hook_id="x", name="other")

    with pytest.raises(CallFailed) as refused:
        await client.hook(send_receipt).get("x")
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.NOT_FOUND, "HOOK_NOT_FOUND")


async def test_a_hook_is_retried_and_cancelled_under_a_request_id(server: FakeServer, client: Client) -> None:
    made = await client.hook(send_receipt).trigger(id="r-1")
    await made.retry()
    await made.cancel()

    retry, cancel = server.hooks.calls
    assert isinstance(retry, pb.RetryHookRequest) and isinstance(cancel, pb.CancelHookRequest)
    assert retry.hook_id == cancel.hook_id == "r-1"
    assert retry.request_id and cancel.request_id and retry.request_id != cancel.request_id


async def test_lists_are_read_to_their_end(server: FakeServer, client: Client) -> None:
    found = [state async for state in client.hook(send_receipt).list(status=["failed", HookStatus.CANCELLED])]

    assert [(state.id, state.status) for state in found] == [("h0", HookStatus.FAILED), ("h1", HookStatus.UNKNOWN)]
    first, second = server.hooks.calls
    assert (first.name, list(first.statuses)) == ("send-receipt", [pb.HOOK_STATUS_FAILED, pb.HOOK_STATUS_CANCELLED])
    assert second.page_token == "1"
    with pytest.raises(ValueError):
        _ = [state async for state in client.hook(send_receipt).list(status="unknown")]


async def test_a_target_is_put_listed_and_deleted(server: FakeServer, client: Client) -> None:
    receipts = client.hook("send-receipt")
    given = await receipts.put_target("https://example.com/in", secrets=["whsec_a", "whsec_b"])
    made = await receipts.put_target("https://example.com/in")
    await receipts.delete_target()

    assert (given.url, given.secrets) == ("https://example.com/in", ())
    assert list(server.hooks.calls[0].secrets) == ["whsec_a", "whsec_b"]
    assert made.secrets == ("whsec_made-up",) and "whsec" not in repr(made)
    assert [type(call) for call in server.hooks.calls][-1] is pb.DeleteHookTargetRequest
    assert all(call.request_id and call.name == "send-receipt" for call in server.hooks.calls)
    assert [(target.name, target.disabled) async for target in client.hook_targets()] == [("t0", False), ("t1", True)]
