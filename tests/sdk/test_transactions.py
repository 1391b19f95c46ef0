"""Transactions through the client: gathered without waiting, sent as one, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc
import pytest

from stepwell import CallFailed, Client, PayloadInvalid, Retry, TransactionRefused, WorkflowEntrypoint, hook
from tests.sdk.fake_server import FakeServer
from tests.sdk.test_client import complete


@dataclass
class Params:
    sku: int


class Order(WorkflowEntrypoint[Params, Any]):
    name = "order"


@hook("send-receipt", retry=Retry(max_attempts=3))
async def send_receipt(payload: Any) -> None: ...


async def test_operations_are_sent_as_one_in_their_order(server: FakeServer, client: Client) -> None:
    async with client.transaction() as tx:
        order = tx.workflow(Order).create(id="o-1", params=Params(7), labels={"who": "me"})
        tx.workflow(Order).get("o-1").send_event("approval", {"approved": True})
        receipt = tx.hook(send_receipt).trigger({"order": 1}, id="r-1")
        assert server.transactions.commits == []

    (commit,) = server.transactions.commits
    assert [one.WhichOneof("operation") for one in commit.operations] == [
        "create_instance",
        "send_event",
        "trigger_hook",
    ]
    created, sent, triggered = commit.operations
    assert (created.create_instance.instance_id, created.create_instance.params.json) == ("o-1", '{"sku":7}')
    assert dict(created.create_instance.labels) == {"who": "me"}
    assert (sent.send_event.workflow, sent.send_event.instance_id, sent.send_event.type) == ("order", "o-1", "approval")
    assert (triggered.trigger_hook.name, triggered.trigger_hook.retry.max_attempts) == ("send-receipt", 3)
    assert (commit.namespace, len(commit.request_id)) == ("default", 32)
    assert (order.id, receipt.id) == ("o-1", "r-1")


async def test_handles_are_of_use_after_the_block(server: FakeServer, client: Client) -> None:
    async with client.transaction() as tx:
        order = tx.workflow("order").create()
        receipt = tx.hook("send-receipt").trigger()
        other = tx.hook("send-receipt").trigger()

    (commit,) = server.transactions.commits
    ids = [commit.operations[0].create_instance.instance_id]
    ids += [one.trigger_hook.hook_id for one in commit.operations[1:]]
    assert ids == [order.id, receipt.id, other.id]
    assert len({*ids}) == 3 and all(ids)
    server.workflows.instances[order.id] = complete(order.id)
    assert (await order.status()).status == "complete"
    await receipt.cancel()
    assert server.hooks.calls[0].hook_id == receipt.id


async def test_an_exception_in_the_block_sends_nothing(server: FakeServer, client: Client) -> None:
    """Behaviour 2."""
    with pytest.raises(LookupError):
        async with client.transaction() as tx:
            tx.hook(send_receipt).trigger()
            raise LookupError("changed my mind")

    assert server.transactions.commits == []


async def test_nothing_in_the_block_is_no_call(server: FakeServer, client: Client) -> None:
    async with client.transaction():
        pass

    assert server.transactions.commits == []


async def test_what_cannot_be_sent_is_raised_where_it_stands(server: FakeServer, client: Client) -> None:
    """Behaviour 12."""
    async with client.transaction() as tx:
        tx.hook(send_receipt).trigger(id="good")
        with pytest.raises(PayloadInvalid):
            tx.hook(send_receipt).trigger(object())
        with pytest.raises(ValueError, match="instant"):
            tx.hook(send_receipt).trigger(process_at=timedelta(1))  # type: ignore[arg-type]
        with pytest.raises(CallFailed, match="INVALID_INSTANCE_ID"):
            tx.workflow(Order).create(id="")

    assert [one.trigger_hook.hook_id for one in server.transactions.commits[0].operations] == ["good"]


async def test_a_refusal_says_which_operation_it_was(server: FakeServer, client: Client) -> None:
    metadata = {"operation": "1", "instance_id": "o-1"}
    server.transactions.failures = [(grpc.StatusCode.ALREADY_EXISTS, "INSTANCE_ID_ALREADY_EXISTS", metadata)]

    with pytest.raises(TransactionRefused) as refused:
        async with client.transaction() as tx:
            tx.hook(send_receipt).trigger()
            tx.workflow(Order).create(id="o-1")

    assert (refused.value.operation, refused.value.reason) == (1, "INSTANCE_ID_ALREADY_EXISTS")
    assert refused.value.metadata["instance_id"] == "o-1"
    assert isinstance(refused.value, CallFailed)


async def test_a_refusal_of_the_whole_is_a_failed_call(server: FakeServer, client: Client) -> None:
    server.transactions.failures = [(grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE", {"limit": "100"})]

    with pytest.raises(CallFailed) as refused:
        async with client.transaction() as tx:
            tx.hook(send_receipt).trigger()

    assert refused.value.reason == "BATCH_TOO_LARGE" and not isinstance(refused.value, TransactionRefused)


async def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_id(server: FakeServer, client: Client) -> None:
    """Behaviour 3, as far as the client has a part in it."""
    server.transactions.failures = [(grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE", {})] * 2

    async with client.transaction() as tx:
        tx.hook(send_receipt).trigger()

    first, *again = server.transactions.commits
    assert again == [first, first]


async def test_a_transaction_gathers_in_its_block_only_and_once(server: FakeServer, client: Client) -> None:
    tx = client.transaction()
    with pytest.raises(RuntimeError, match="inside of its"):
        tx.hook(send_receipt).trigger()
    async with tx:
        tx.hook(send_receipt).trigger()
    with pytest.raises(RuntimeError, match="inside of its"):
        tx.workflow(Order).create()
    with pytest.raises(RuntimeError, match="used once"):
        async with tx:
            pass

    assert len(server.transactions.commits) == 1
