"""Hooks that are being executed: who holds them, for how long, and what happens if the holder is lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import HookStatus, JobContext, Retry, Worker, hook
from stepwell.v1 import frames_pb2, workers_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from tests.behaviour.hooks.conftest import StartHarness
from tests.behaviour.workflows.conftest import LeasesLapse
from tests.support.patience import PATIENCE
from tests.support.workers.hooks import Calls
from tests.support.workers.workflows import refused


async def until(h: Any, handle: Any, status: HookStatus) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await handle.status()).status != status:
            await asyncio.sleep(0.01)


async def test_a_hook_that_executes_is_seen_to_do_so(harness: StartHarness) -> None:
    """Behaviours 27 and 29."""
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    triggered = await h.client.hook(note.hook).trigger()
    await note.reached(1)
    await h.start_worker()

    state = await triggered.status()
    assert (state.status, state.attempts, state.next_attempt_at) == (HookStatus.PROCESSING, 1, None)
    assert state.last_attempt_at == await h.now()
    listed = await WorkerServiceStub(h.client.channel).ListWorkers(
        workers_pb2.ListWorkersRequest(namespace=h.namespace)
    )
    tasks = [(task.handler.kind, task.key) for worker in listed.workers for task in worker.tasks]
    assert tasks == [(frames_pb2.HANDLER_KIND_HOOK, triggered.id)]

    note.is_open.set()
    await until(h, triggered, HookStatus.COMPLETED)
    assert len(note) == 1


async def test_a_hook_whose_worker_died_is_executed_by_another_and_that_counts(
    harness: StartHarness, leases_lapse: LeasesLapse
) -> None:
    """Behaviours 28 and 31."""
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    triggered = await h.client.hook(note.hook).trigger()
    await note.reached(1)
    await h.crash_worker()
    await leases_lapse()
    await h.start_worker()
    await note.reached(2)
    note.is_open.set()
    await h.run_until_idle()

    state = await triggered.status()
    assert (state.status, state.attempts) == (HookStatus.COMPLETED, 2)
    assert [ctx.attempt for ctx in note.contexts] == [1, 2] and len({*note.keys}) == 1


async def test_a_hook_that_kills_every_worker_comes_to_an_end(harness: StartHarness, leases_lapse: LeasesLapse) -> None:
    """Behaviour 32."""
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    triggered = await h.client.hook(note.hook).trigger(retry=Retry(max_attempts=3))
    for attempt in (1, 2, 3):
        await note.reached(attempt)
        await h.crash_worker()
        await leases_lapse()
        await h.start_worker()
    await h.advance("1 day")

    state = await triggered.status()
    assert (state.status, state.attempts, len(note)) == (HookStatus.FAILED, 3, 3)
    assert state.error is not None and state.error.name == "JobMaxAttemptsExceeded"


async def test_a_worker_that_leaves_gives_back_what_does_not_end(harness: StartHarness) -> None:
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    triggered = await h.client.hook(note.hook).trigger()
    await note.reached(1)
    await h.replace_worker()
    await note.reached(2)
    note.is_open.set()
    await h.run_until_idle()

    assert (await triggered.status()).attempts == 2


async def test_no_more_are_executed_at_once_than_the_worker_takes(harness: StartHarness) -> None:
    """Behaviour 34."""
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    await h.stop_worker()
    await h.client.hook("note").trigger_batch([{}] * 17)

    async with Worker(h.client, hooks=[note.hook], max_tasks=16):
        await note.reached(16)
        states = [state.status async for state in h.client.hook("note").list()]
        assert (states.count(HookStatus.PROCESSING), states.count(HookStatus.PENDING)) == (16, 1)
        note.is_open.set()
        await note.reached(17)


async def test_a_slow_hook_delays_no_other(harness: StartHarness) -> None:
    """Behaviours 35 and 36."""
    slow, quick = Calls("slow", waits=True), Calls("quick")
    h = await harness(hooks=[slow.hook, quick.hook])
    held = await h.client.hook("slow").trigger()
    await slow.reached(1)

    done = await h.client.hook("quick").trigger()
    await until(h, done, HookStatus.COMPLETED)

    assert (await held.status()).status == HookStatus.PROCESSING
    slow.is_open.set()
    await until(h, held, HookStatus.COMPLETED)


async def test_the_oldest_due_is_taken_first(harness: StartHarness) -> None:
    """Behaviour 37."""
    note = Calls()
    h = await harness(hooks=[note.hook])
    await h.stop_worker()
    now = await h.now()
    for minutes in (1, 3, 2, 5, 4):
        await h.client.hook("note").trigger(minutes, process_at=now + timedelta(minutes=minutes))
    await h.advance("10 minutes")

    async with Worker(h.client, hooks=[note.hook], max_tasks=1):
        await note.reached(5)

    assert note.payloads == [1, 2, 3, 4, 5]


async def test_an_execution_that_takes_too_long_has_failed(harness: StartHarness) -> None:
    stopped = asyncio.Event()

    @hook("note")
    async def note(payload: Any, ctx: JobContext) -> None:
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        finally:
            stopped.set()

    h = await harness(hooks=[note])
    triggered = await h.client.hook(note).trigger()
    await h.advance("20 minutes")

    state = await triggered.status()
    assert stopped.is_set()
    assert (state.status, state.attempts) == (HookStatus.COMPLETED, 2)


async def test_what_took_too_long_says_so(harness: StartHarness) -> None:
    note = Calls(waits=True)
    h = await harness(hooks=[note.hook])
    triggered = await h.client.hook(note.hook).trigger(retry=Retry(limit=0))
    await h.advance("20 minutes")

    state = await triggered.status()
    assert state.status == HookStatus.FAILED
    assert state.error is not None and state.error.name == "JobTimeoutError"


async def test_a_hook_that_is_cancelled_is_stopped_and_never_executed_again(harness: StartHarness) -> None:
    cancelled = asyncio.Event()
    began = asyncio.Event()

    @hook("note")
    async def note(payload: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    h = await harness(hooks=[note])
    triggered = await h.client.hook(note).trigger()
    await asyncio.wait_for(began.wait(), 10)
    await triggered.cancel()
    await asyncio.wait_for(cancelled.wait(), 10)
    await h.advance("1 day")

    state = await triggered.status()
    assert (state.status, state.attempts) == (HookStatus.CANCELLED, 1)
    assert state.ended_at is not None and state.next_attempt_at is None
    assert await refused(triggered.cancel()) == "HOOK_ENDED"


async def test_a_hook_that_waits_can_be_cancelled(harness: StartHarness) -> None:
    note = Calls()
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, process_at=await h.now() + timedelta(hours=1))
    await triggered.cancel()
    await h.advance("1 day")

    assert ((await triggered.status()).status, len(note)) == (HookStatus.CANCELLED, 0)


async def test_a_retry_makes_a_hook_that_failed_begin_anew(harness: StartHarness) -> None:
    note = Calls(failures=2)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, retry=Retry(max_attempts=2, delay="1 second"))
    await h.advance("1 hour")
    assert (await triggered.status()).status == HookStatus.FAILED

    await triggered.retry()
    await h.run_until_idle()

    state = await triggered.status()
    assert (state.status, len(note), len({*note.keys})) == (HookStatus.COMPLETED, 3, 1)
    assert note.contexts[-1].attempt == 1
    assert await refused(triggered.retry()) == "HOOK_COMPLETED"


async def test_a_retry_ends_a_wait(harness: StartHarness) -> None:
    note = Calls(failures=1)
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, process_at=await h.now() + timedelta(days=1), retry=Retry(delay="1 hour"))
    for count in (1, 2):
        await triggered.retry()
        await h.run_until_idle()
        assert len(note) == count

    assert (await triggered.status()).status == HookStatus.COMPLETED


async def test_a_cancelled_hook_can_be_retried(harness: StartHarness) -> None:
    note = Calls()
    h = await harness(hooks=[note.hook])
    triggered = await h.trigger(note.hook, process_at=await h.now() + timedelta(days=1))
    await triggered.cancel()
    await triggered.retry()
    await h.run_until_idle()

    assert ((await triggered.status()).status, len(note)) == (HookStatus.COMPLETED, 1)


async def test_handlers_that_are_not_async_are_executed_side_by_side(harness: StartHarness) -> None:
    import threading

    together = threading.Barrier(2, timeout=10)

    @hook("note")
    def note(payload: Any) -> None:
        together.wait()

    h = await harness(hooks=[note])
    handles = await h.client.hook(note).trigger_batch([{}, {}])
    await h.run_until_idle()

    assert [(await handle.status()).status for handle in handles] == [HookStatus.COMPLETED] * 2
