"""Executing hooks: once if all goes well, again if not, and never too often."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, HookStatus, JobContext, NonRetryableError, Retry, hook
from stepwell.testing import Harness
from tests.behaviour.hooks.conftest import StartHarness
from tests.support.workers.hooks import Calls

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


async def statuses(h: Harness, name: str = "note") -> dict[str, HookStatus]:
    return {state.id: state.status async for state in h.client.hook(name).list()}


async def test_what_is_due_is_executed_and_what_is_not_stays(harness: StartHarness) -> None:
    """Behaviour 13."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    later = await h.now() + HOUR
    await h.client.hook("note").trigger_batch([{"id": "a"}, {"id": "b", "process_at": later}, {"id": "c"}])
    await h.run_until_idle()

    assert await statuses(h) == {
        "a": HookStatus.COMPLETED,
        "b": HookStatus.PENDING,
        "c": HookStatus.COMPLETED,
    }


async def test_a_hook_that_succeeded_is_never_executed_again(harness: StartHarness) -> None:
    """Behaviour 14."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook)
    now = await h.now()
    await h.advance("365 days")
    await h.replace_worker()
    await h.run_until_idle()

    state = await triggered.status()
    assert (state.status, state.attempts, len(note)) == (HookStatus.COMPLETED, 1, 1)
    assert state.last_attempt_at == state.ended_at == now
    assert (state.next_attempt_at, state.error) == (None, None)


async def test_one_that_raises_does_not_touch_its_neighbours(harness: StartHarness) -> None:
    """Behaviour 15."""

    @hook("note")
    async def note(payload: Any) -> None:
        if payload == 2:
            raise LookupError(payload)

    h = await harness(hooks=[note])
    await h.client.hook(note).trigger_batch([{"id": f"n-{n}", "payload": n} for n in (1, 2, 3)])
    await h.run_until_idle()

    assert await statuses(h) == {
        "n-1": HookStatus.COMPLETED,
        "n-2": HookStatus.PENDING,
        "n-3": HookStatus.COMPLETED,
    }
    failed = await (await h.client.hook(note).get("n-2")).status()
    assert failed.attempts == 1 and failed.error is not None


async def test_a_failure_is_stored_and_tried_again_after_the_delay(harness: StartHarness) -> None:
    """Behaviours 16 and 23."""
    note = Calls(failures=1)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(delay="10 seconds"))

    state = await triggered.status()
    assert (state.status, state.attempts) == (HookStatus.PENDING, 1)
    assert state.error is not None and (state.error.name, state.error.message) == ("ConnectionError", "no route")
    assert state.next_attempt_at == await h.now() + 10 * SECOND

    await h.advance("9.999 seconds")
    assert len(note) == 1
    await h.advance(1)
    state = await triggered.status()
    assert (state.status, state.attempts, state.error) == (HookStatus.COMPLETED, 2, None)


async def test_the_default_policy_is_executed_as_it_is_stored(harness: StartHarness) -> None:
    """Behaviours 17 and 18, with the numbers that were decided: 5 executions, 1 second, doubling to 1 minute."""
    note = Calls(failures=99)
    h = await harness(hooks=[note.hook])
    began = await h.now()
    triggered = await h.trigger(note.hook)
    delays = []
    while (state := await triggered.status()).next_attempt_at is not None:
        delays.append(state.next_attempt_at - await h.now())
        await h.advance(delays[-1])

    assert delays == [SECOND * n for n in (1, 2, 4, 8)]
    assert (state.status, state.attempts, state.max_attempts, len(note)) == (HookStatus.FAILED, 5, 5, 5)
    assert state.ended_at == began + 15 * SECOND
    assert [(ctx.attempt, ctx.max_attempts) for ctx in note.contexts] == [(n, 5) for n in (1, 2, 3, 4, 5)]


async def test_delays_grow_to_their_maximum(harness: StartHarness) -> None:
    """Behaviour 17."""
    note = Calls(failures=99)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(max_attempts=5, delay="30 seconds"))
    delays = []
    while (at := (await triggered.status()).next_attempt_at) is not None:
        delays.append(at - await h.now())
        await h.advance(delays[-1])

    assert delays == [SECOND * n for n in (30, 60, 60, 60)]


async def test_a_hook_without_retries_is_executed_once(harness: StartHarness) -> None:
    """Behaviour 19."""
    note = Calls(failures=99)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(limit=0))
    await h.advance("1 day")

    state = await triggered.status()
    assert (state.status, state.attempts, state.max_attempts, len(note)) == (HookStatus.FAILED, 1, 1, 1)


async def test_the_policy_of_the_trigger_outlives_every_process(harness: StartHarness) -> None:
    """Behaviour 20."""
    note = Calls(failures=1)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(max_attempts=2, delay="1 hour", backoff="constant"))

    again = Calls(failures=99, retry=Retry(max_attempts=9, delay="1 second"))
    await h.replace_worker(App(hooks=[again.hook]))
    await h.advance("59 minutes")
    assert len(again) == 0
    await h.advance("1 minute")

    state = await triggered.status()
    assert (state.status, len(again), state.retry.backoff) == (HookStatus.FAILED, 1, "constant")


async def test_a_hook_that_failed_for_good_stays_so_and_is_listed(harness: StartHarness) -> None:
    """Behaviour 21."""
    note = Calls(failures=99)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(max_attempts=2))
    await h.advance("365 days")

    assert len(note) == 2
    assert (await triggered.status()).next_attempt_at is None
    assert [state.id async for state in h.client.hook("note").list(status="failed")] == [triggered.id]


async def test_a_handler_can_say_that_trying_again_is_pointless(harness: StartHarness) -> None:
    @hook("note", retry=Retry(is_retryable=lambda error: not isinstance(error, LookupError)))
    async def note(payload: Any) -> None:
        raise NonRetryableError("no customer", name="NoCustomer") if payload else LookupError("no order")

    h = await harness(hooks=[note])
    states = [await (await h.trigger(note, payload)).status() for payload in (0, 1)]

    assert [(state.status, state.attempts) for state in states] == [(HookStatus.FAILED, 1)] * 2
    assert [state.error.name for state in states if state.error] == ["LookupError", "NoCustomer"]


async def test_a_name_that_nobody_ever_hosted_waits_a_day_and_then_fails(harness: StartHarness) -> None:
    """Behaviour 22, as it was decided: it waits as unserved, and after 24 hours each attempt fails."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger("misspelt", retry=Retry(max_attempts=2, delay="1 second"))
    await h.trigger(note.hook)
    await h.advance("23 hours")
    state = await triggered.status()
    assert (state.status, state.attempts, len(note)) == (HookStatus.PENDING, 0, 1)

    await h.advance("2 hours")
    state = await triggered.status()
    assert (state.status, state.attempts) == (HookStatus.PENDING, 1)

    await h.advance("25 hours")
    state = await triggered.status()
    assert (state.status, state.attempts) == (HookStatus.FAILED, 2)
    assert state.error is not None
    assert state.error.name == "HOOK_HANDLER_NOT_FOUND" and "misspelt" in state.error.message


async def test_a_name_whose_workers_are_away_just_waits(harness: StartHarness) -> None:
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.stop_worker()
    triggered = await h.trigger(note.hook)
    await h.advance("30 days")
    assert (await triggered.status()).attempts == 0

    await h.start_worker()
    await h.run_until_idle()
    assert (await triggered.status()).status == HookStatus.COMPLETED


async def test_hooks_of_one_transaction_are_told_apart(harness: StartHarness) -> None:
    """Behaviour 24."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    async with h.client.transaction() as tx:
        handles = [tx.hook(note.hook).trigger(n) for n in range(3)]
    await h.run_until_idle()

    assert {ctx.id for ctx in note.contexts} == {handle.id for handle in handles}
    assert len({*note.keys}) == 3


async def test_every_execution_has_the_same_key_and_no_other_hook_has_it(harness: StartHarness) -> None:
    """Behaviours 26 and 39."""
    note, other = Calls(failures=4), Calls("other")
    h = await harness(hooks=[note.hook, other.hook])
    triggered = await h.trigger(note.hook)
    await h.trigger(other.hook)
    await h.advance(HOUR)

    state = await triggered.status()
    assert (len(note), {*note.keys}) == (5, {state.idempotency_key})
    assert state.idempotency_key not in other.keys
    assert {(ctx.id, ctx.name, ctx.created_at) for ctx in note.contexts} == {(triggered.id, "note", state.created_at)}


async def test_two_workers_share_hooks_and_none_is_executed_twice(harness: StartHarness) -> None:
    """Behaviour 25."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.start_worker()
    await h.client.hook("note").trigger_batch([{"id": f"n-{n}"} for n in range(200)])
    await h.run_until_idle()

    assert sorted(ctx.id for ctx in note.contexts) == sorted(f"n-{n}" for n in range(200))
    assert {*(await statuses(h)).values()} == {HookStatus.COMPLETED}


async def test_a_handler_that_triggers_a_hook_has_it_executed_after_it(harness: StartHarness) -> None:
    """Behaviour 38."""
    note = Calls()

    @hook("chain")
    async def chain(payload: Any) -> None:
        await h.client.hook("note").trigger(payload)

    h = await harness(hooks=[note.hook, chain])
    await h.trigger(chain, 7)

    assert note.payloads == [7]


async def test_hooks_are_listed_newest_first_over_all_pages(harness: StartHarness) -> None:
    """Behaviour 40."""
    h = await harness(hooks=[Calls().hook, Calls("other").hook])
    for part in range(3):
        await h.client.hook("note").trigger_batch([{"id": f"n-{part}-{n:02}"} for n in range(50)])
        await h.trigger("other")

    listed = [state.id async for state in h.client.hook("note").list()]
    assert listed == sorted(listed, reverse=True) and len(listed) == 150


@pytest.mark.parametrize("payload", [None, 0, "", [], {"a": [1, None, "ä"]}, 2**64 + 1])
async def test_a_payload_arrives_as_it_was_sent(harness: StartHarness, payload: Any) -> None:
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.trigger(note.hook, payload)

    assert note.payloads == [{} if payload is None else payload]


async def test_a_hook_that_fails_after_it_triggered_another_has_triggered_it_once(harness: StartHarness) -> None:
    @hook("first")
    async def first(payload: Any, ctx: JobContext) -> None:
        await h.client.hook("note").trigger("unnamed")
        async with h.client.transaction() as tx:
            tx.hook("note").trigger("in a transaction")
        if ctx.attempt == 1:
            raise ConnectionError("down")

    note = Calls()
    h = await harness(hooks=[first, note.hook])
    await h.trigger(first, retry=Retry(limit=1, delay="1 second"))
    await h.advance("1 second")

    assert (await statuses(h, "first")).popitem()[1] == HookStatus.COMPLETED
    assert len(await statuses(h)) == len(note) == 2
