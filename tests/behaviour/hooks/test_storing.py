"""Storing and scheduling hooks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from stepwell import CallFailed, HookStatus, Retry, TransactionRefused, workflow
from stepwell.testing import Harness
from stepwell.v1 import transactions_pb2 as tx
from stepwell.v1.hooks_pb2 import TriggerHooksItem
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from tests.behaviour.hooks.conftest import StartHarness
from tests.support.workers.hooks import Calls
from tests.support.workers.workflows import refused

HOUR = timedelta(hours=1)


@workflow("order")
async def order(event: Any, step: Any) -> str:
    return "done"


async def ids(h: Harness, name: str = "note", **filters: Any) -> list[str]:
    return [state.id async for state in h.client.hook(name).list(**filters)]


async def test_a_transaction_stores_its_hook_and_its_instance_in_one_commit(harness: StartHarness) -> None:
    """Behaviour 1."""
    note = Calls()
    h = await harness(order, hooks=[note.hook])
    await h.stop_worker()

    async with h.client.transaction() as tx:
        made = tx.workflow(order).create(id="o-1")
        hook = tx.hook(note.hook).trigger({"order": "o-1"}, id="n-1")

    state = await hook.status()
    assert (state.status, state.attempts, state.payload) == (HookStatus.PENDING, 0, {"order": "o-1"})
    assert (await made.status()).status == "queued"
    assert await ids(h) == ["n-1"]

    await h.start_worker()
    await h.run_until_idle()
    assert note.payloads == [{"order": "o-1"}]
    assert await made.result() == "done"


async def test_a_transaction_that_is_refused_stores_and_runs_nothing(harness: StartHarness) -> None:
    """Behaviour 2."""
    note = Calls()
    h = await harness(order, hooks=[note.hook])
    await h.start(order, id="taken")

    with pytest.raises(TransactionRefused) as caught:
        async with h.client.transaction() as tx:
            tx.hook(note.hook).trigger(id="n-1")
            tx.workflow(order).create(id="fresh")
            tx.workflow(order).create(id="taken")
    await h.advance("1 day")

    assert (caught.value.operation, caught.value.reason) == (2, "INSTANCE_ID_ALREADY_EXISTS")
    assert (await ids(h), len(note)) == ([], 0)
    assert await refused(h.client.workflow(order).get("fresh")) == "INSTANCE_NOT_FOUND"


async def test_a_block_that_raises_stores_nothing(harness: StartHarness) -> None:
    """Behaviour 2."""
    note = Calls()
    h = await harness(order, hooks=[note.hook])

    with pytest.raises(LookupError):
        async with h.client.transaction() as tx:
            tx.hook(note.hook).trigger()
            raise LookupError

    assert await ids(h) == []


async def test_a_transaction_that_is_sent_again_is_done_once(harness: StartHarness) -> None:
    """Behaviour 3."""
    note = Calls()
    h = await harness(order, hooks=[note.hook])
    operation = tx.Operation(trigger_hook=TriggerHooksItem(name="note"))
    request = tx.CommitRequest(namespace=h.namespace, operations=[operation], request_id=uuid4().hex)

    first = await h.client.stub(TransactionServiceStub).Commit(request)
    again = await h.client.stub(TransactionServiceStub).Commit(request)
    await h.run_until_idle()

    assert again.results[0].hook.hook_id == first.results[0].hook.hook_id
    assert (await ids(h), len(note)) == ([first.results[0].hook.hook_id], 1)


async def test_an_event_reaches_an_instance_of_the_same_transaction(harness: StartHarness) -> None:
    @workflow("waits")
    async def waits(event: Any, step: Any) -> Any:
        return (await step.wait_for_event("paid", type="paid")).payload

    h = await harness(waits)
    async with h.client.transaction() as tx:
        made = tx.workflow(waits).create(id="w-1")
        tx.workflow(waits).get("w-1").send_event("paid", 42)
    await h.run_until_idle()

    assert await made.result() == 42


async def test_a_hook_is_due_at_once_if_nothing_else_is_said(harness: StartHarness) -> None:
    """Behaviour 4."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.stop_worker()
    hook = await h.client.hook(note.hook).trigger()

    state = await hook.status()
    assert state.next_attempt_at is not None and state.next_attempt_at <= await h.now()
    await h.start_worker()
    await h.run_until_idle()
    assert len(note) == 1


async def test_a_hook_waits_for_exactly_its_time(harness: StartHarness) -> None:
    """Behaviours 5 and 7."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    at = await h.now() + HOUR + timedelta(microseconds=7)
    hook = await h.trigger(note.hook, process_at=at)

    state = await hook.status()
    assert (state.status, state.attempts) == (HookStatus.PENDING, 0)
    assert state.process_at == state.next_attempt_at == at
    await h.advance(HOUR)
    assert (await hook.status(), len(note)) == (state, 0)

    await h.advance(1)
    assert len(note) == 1
    assert (await hook.status()).last_attempt_at == at


@pytest.mark.parametrize("at", [datetime(1999, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)])
async def test_a_time_in_the_past_is_at_once(harness: StartHarness, at: datetime) -> None:
    """Behaviour 6."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.trigger(note.hook, process_at=at)

    assert len(note) == 1


async def test_a_scheduled_hook_that_fails_is_retried_by_its_policy(harness: StartHarness) -> None:
    """Behaviour 8."""
    note = Calls(failures=1)
    h = await harness(hooks=[note.hook])
    at = await h.now() + HOUR
    hook = await h.trigger(note.hook, process_at=at, retry=Retry(delay="7 seconds"))
    await h.advance(HOUR)

    state = await hook.status()
    assert (state.process_at, state.next_attempt_at) == (at, at + timedelta(seconds=7))


async def test_hooks_of_a_namespace_run_there_only(harness: StartHarness) -> None:
    """Behaviour 10."""
    mine, other = Calls(), Calls()
    h = await harness(hooks=[mine.hook])
    g = await harness(hooks=[other.hook])
    await h.trigger("note", "mine")
    await g.trigger("note", "other")

    assert (mine.payloads, other.payloads) == (["mine"], ["other"])
    assert len(await ids(h)) == 1


@pytest.mark.parametrize("failures", [0, 1], ids=["completed", "waiting for a retry"])
async def test_an_id_that_exists_is_refused_and_the_first_hook_goes_on(harness: StartHarness, failures: int) -> None:
    """Behaviour 11."""
    note = Calls(failures=failures)
    h = await harness(hooks=[note.hook])
    hook = await h.trigger(note.hook, "first", id="n-1")
    before = await hook.status()

    assert await refused(h.client.hook(note.hook).trigger("second", id="n-1")) == "HOOK_ID_ALREADY_EXISTS"
    assert await refused(h.client.hook("other").trigger(id="n-1")) == "HOOK_ID_ALREADY_EXISTS"
    assert await hook.status() == before
    await h.advance(HOUR)

    assert {*note.payloads} == {"first"}
    assert (await hook.status()).status == HookStatus.COMPLETED


async def test_names_of_the_engine_cannot_be_triggered(harness: StartHarness) -> None:
    h = await harness()

    with pytest.raises(CallFailed, match="INVALID_HOOK_NAME"):
        await h.client.hook("workflow.completed").trigger()
