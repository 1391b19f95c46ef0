"""What a client refuses before anything is sent, and what it says if there is no server."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import CallFailed, Client, Instance, PayloadInvalid
from tests.sdk.fake_server import FakeServer


async def drained(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda orders: orders.create(id=5), TypeError, "id is text, not 5"),
        (lambda orders: orders.create(labels={"a": 5}), TypeError, r"labels\['a'\] is text, not 5"),
        (lambda orders: orders.create(labels="a=5"), TypeError, "labels is a mapping of text to text, not 'a=5'"),
        (lambda orders: orders.get(5), TypeError, "id is text, not 5"),
        (lambda orders: drained(orders.list(order="x")), ValueError, """order is "newest" or "oldest", not 'x'"""),
        (lambda orders: drained(orders.list(status="done")), ValueError, "status is one of queued, .*, not 'done'"),
        (lambda orders: drained(orders.list(status=5)), TypeError, "status is a status or several, not 5"),
        (lambda orders: drained(orders.list(labels={5: "a"})), TypeError, "a key of labels is text, not 5"),
        (lambda orders: Instance(orders.client, "order", "x").send_event(None), TypeError, "type is text, not None"),
        (lambda orders: Instance(orders.client, "order", "x").restart(5), TypeError, "from_step is text, not 5"),
        (lambda orders: Instance(orders.client, "order", "x").history("1"), TypeError, "run_number is a number"),
        (lambda orders: orders.client.hook("note").trigger(id=5), TypeError, "id is text, not 5"),
        (lambda orders: orders.client.hook("note").trigger(retry=5), TypeError, "retry is a Retry, not 5"),
        (lambda orders: orders.client.hook("note").put_target(5), TypeError, "url is text, not 5"),
        (
            lambda orders: orders.client.hook("note").put_target("https://a.b", secrets="whsec_a"),
            TypeError,
            "secrets is a list of texts, not 'whsec_a'",
        ),
    ],
)
async def test_an_argument_that_cannot_be_meant_is_refused_by_its_name(
    server: FakeServer, client: Client, call: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await call(client.workflow("order"))

    assert server.workflows.creates == server.workflows.calls == []


async def test_a_call_larger_than_a_message_may_be_is_refused_before_it_is_sent(
    server: FakeServer, client: Client
) -> None:
    calls = (
        client.workflow("order").create(params="x" * 5_000_000),
        client.workflow("order").create_batch([{"params": "x" * 5_000_000}]),
    )
    for call in calls:
        with pytest.raises(PayloadInvalid, match="at most 4194304 are sent") as refused:
            await call
        assert refused.value.reason == "PAYLOAD_TOO_LARGE"

    assert server.workflows.creates == []


async def test_a_call_that_finds_no_server_says_where_it_looked_and_why_there_is_none() -> None:
    async with Client("127.0.0.1:1", patience=0) as client:
        with pytest.raises(CallFailed) as failed:
            await client.workflow("order").get("x")

    assert str(failed.value) == "no server answers at 127.0.0.1:1: Connection refused (UNAVAILABLE)"
