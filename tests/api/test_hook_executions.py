"""Executions of hooks: outcomes, retries, workers that are lost, time that runs out. Workers are played by frames."""

from __future__ import annotations

import json

import pytest

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import BACKOFF_CONSTANT, BACKOFF_LINEAR, RetryPolicy
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at, item, retry, status_of
from tests.support.servers.servers import Served, start_in_process
from tests.support.workers.frames import raised, returned, seconds, suspend
from tests.support.workers.workers import ACK_WINDOW, LEASE, HandWorker, UnaryWorker, age_leases, grant, held

DAY = 86_400.0
TIMEOUT = 600
"""Seconds that one execution has. A virtual clock leaves no margin: nothing is on its way while it is moved."""


@pytest.fixture
def frozen(still: Served) -> Triggers:
    """Hooks of a server whose time stands still."""
    return Triggers(still.channel)


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts the hook "note"."""
    return await hire(hooks=("note",), credit=9)


@pytest.fixture
async def frozen_worker(hire_at: Hire, still: Served) -> HandWorker:
    """A worker that hosts the hook "note", where time stands still."""
    return await hire_at(still, hooks=("note",), credit=99)


# ---- outcomes


async def test_a_hook_goes_from_its_trigger_to_its_end(frozen: Triggers, frozen_worker: HandWorker) -> None:
    stored = await frozen.trigger("one", json='{"sku":7}', retry=retry(3))
    job = await frozen_worker.take()
    executing = await frozen.get("one")
    await frozen.advance(2)

    ack = await job.tell(returned())

    assert (job.task.handler.kind, job.task.handler.name, job.task.key) == (pb.HANDLER_KIND_HOOK, "note", "one")
    assert (job.hook.payload.json, job.hook.attempt, job.hook.max_attempts) == ('{"sku":7}', 1, 3)
    assert (job.hook.idempotency_key, job.hook.created_at) == (stored.idempotency_key, stored.created_at)
    began = at(stored.created_at)
    assert (job.hook.timeout.seconds, at(job.hook.deadline_at)) == (600, began + TIMEOUT)
    assert (status_of(executing), executing.attempts, at(executing.last_attempt_at)) == ("PROCESSING", 1, began)
    assert not executing.HasField("next_attempt_at")
    assert ack.released
    ended = await frozen.get("one")
    assert (status_of(ended), ended.attempts, ended.HasField("failure")) == ("COMPLETED", 1, False)
    assert (at(ended.last_attempt_at), at(ended.ended_at)) == (began, began + 2)


async def test_an_outcome_that_is_repeated_is_acknowledged_again(triggers: Triggers, worker: HandWorker) -> None:
    for hook_id, outcome in (("one", returned()), ("two", raised()), ("three", raised(non_retryable=True))):
        await triggers.trigger(hook_id, retry=retry(3, delay=3600))
        job = await worker.take()
        (sent,) = await job.send(outcome)
        first = (await job.answer(1)).ack
        before = await triggers.get(hook_id)

        await worker.say(sent)

        again = (await job.answer(1)).ack
        assert (first.released, again.released) == (True, True)
        assert await triggers.get(hook_id) == before


async def test_a_second_outcome_is_not_taken(triggers: Triggers, worker: HandWorker) -> None:
    await triggers.trigger("one", retry=retry(3, delay=3600))
    job = await worker.take()
    await job.tell(raised())

    await job.send(returned())

    assert await job.stale() == "LEASE_LOST"
    assert await triggers.status("one") == "PENDING"


async def test_a_frame_that_is_not_of_hooks_is_refused_and_the_hook_goes_on(
    triggers: Triggers, worker: HandWorker
) -> None:
    await triggers.trigger("one")
    job = await worker.take()

    assert await job.refused(suspend()) == "INVALID_FIELD"

    assert (await job.tell(returned())).released
    assert await triggers.status("one") == "COMPLETED"


async def test_neighbours_of_one_that_fails_are_not_touched(triggers: Triggers, worker: HandWorker) -> None:
    await triggers.trigger_many(*(item(f"h{number}", retry=retry(1)) for number in range(3)))
    jobs = [await worker.take() for _ in range(3)]

    await worker.say(*(job.stamp(raised() if job.task.key == "h1" else returned()) for job in jobs))
    for job in jobs:
        assert (await job.answer(1)).ack.released

    assert [await triggers.status(f"h{number}") for number in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]


async def test_one_slow_hook_delays_no_other(triggers: Triggers, worker: HandWorker) -> None:
    await triggers.trigger("slow")
    slow = await worker.take()

    for number in range(3):
        await triggers.trigger(f"fast{number}")
        await (await worker.take()).tell(returned())
        assert await triggers.status(f"fast{number}") == "COMPLETED"
    assert await triggers.status("slow") == "PROCESSING"
    await slow.tell(returned())
    assert await triggers.status("slow") == "COMPLETED"


async def test_no_more_are_sent_than_the_worker_can_take(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=16)
    await triggers.trigger_many(*(item(f"h{number}") for number in range(17)))
    jobs = [await worker.take() for _ in range(16)]
    await worker.beat(*jobs)

    assert not worker.has("task")
    assert await triggers.ids("PENDING") == ["h16"]
    await worker.say(grant(1))
    assert (await worker.take()).task.key == "h16"


async def test_the_oldest_due_is_taken_first_whether_new_or_tried_again(
    frozen: Triggers, hire_at: Hire, still: Served
) -> None:
    first = await hire_at(still, hooks=("note",))
    await frozen.trigger("again", retry=retry(2, delay=5))
    await (await first.take()).tell(raised())
    await first.goodbye()
    now = await frozen.now()
    await frozen.trigger_many(*(item(f"in{s}", process_at=now + s) for s in (9, 1, 7, 3)))
    await frozen.trigger("now")
    await frozen.advance(10)

    worker = await hire_at(still, hooks=("note",), credit=6)

    assert [(await worker.take()).task.key for _ in range(6)] == ["now", "in1", "in3", "again", "in7", "in9"]


async def test_nothing_is_executed_before_its_time(frozen: Triggers, frozen_worker: HandWorker) -> None:
    await frozen.trigger("one", process_at=await frozen.now() + 3600)

    await frozen.advance(3599.999999)
    await frozen_worker.beat()
    assert not frozen_worker.has("task")
    assert (await frozen.get("one")).attempts == 0
    await frozen.advance(0.000001)

    assert (await frozen_worker.take()).task.key == "one"


# ---- retries

DELAYS: list[tuple[RetryPolicy | None, list[float | None]]] = [
    (None, [1, 2, 4, 8, None]),
    (RetryPolicy(max_attempts=7), [1, 2, 4, 8, 16, 32, None]),
    (RetryPolicy(unlimited=True), [1, 2, 4, 8, 16, 32, 60, 60]),
    (retry(4, delay=10, backoff=BACKOFF_CONSTANT), [10, 10, 10, None]),
    (retry(4, delay=10, backoff=BACKOFF_LINEAR), [10, 20, 30, None]),
    (retry(4, delay=10, max_delay=seconds(15)), [10, 15, 15, None]),
    (retry(3, delay=7200), [7200, 7200, None]),
    (retry(1), [None]),
]


async def test_delays_grow_as_the_stored_policy_says_and_the_key_stays(
    frozen: Triggers, frozen_worker: HandWorker
) -> None:
    for number, (policy, expected) in enumerate(DELAYS):
        hook_id = f"h{number}"
        stored = await frozen.trigger(hook_id, retry=policy)
        found: list[float | None] = []
        for attempt in range(1, len(expected) + 1):
            job = await frozen_worker.take()
            assert (job.task.key, job.hook.attempt) == (hook_id, attempt)
            assert job.hook.idempotency_key == stored.idempotency_key
            ack = await job.tell(raised(message=f"attempt {attempt}"))
            hook, now = await frozen.get(hook_id), await frozen.now()
            assert (hook.attempts, hook.failure.message) == (attempt, f"attempt {attempt}")
            found.append(at(ack.wake_at) - now if ack.HasField("wake_at") else None)
            assert hook.HasField("next_attempt_at") == ack.HasField("wake_at")
            if found[-1] is not None:
                assert (status_of(hook), at(hook.next_attempt_at)) == ("PENDING", at(ack.wake_at))
                await frozen.manage("Retry", hook_id)  # instead of the time that would have to pass
        assert [one and round(one, 6) for one in found] == expected, policy
        if expected[-1] is None:
            assert (status_of(hook), at(hook.ended_at)) == ("FAILED", now)
        else:
            await frozen_worker.take()
            await frozen.manage("Cancel", hook_id)
    assert await frozen.ids("FAILED") == [f"h{n}" for n in (7, 6, 5, 4, 3, 1, 0)]


async def test_a_scheduled_hook_that_fails_is_tried_again_by_its_policy(
    frozen: Triggers, frozen_worker: HandWorker
) -> None:
    await frozen.trigger("one", process_at=await frozen.now() + 100, retry=retry(2, delay=10))
    await frozen.advance(100)
    await (await frozen_worker.take()).tell(raised())

    hook = await frozen.get("one")
    assert (at(hook.next_attempt_at), at(hook.process_at)) == (await frozen.now() + 10, await frozen.now())
    await frozen.advance(10)

    job = await frozen_worker.take()
    assert (job.hook.attempt, job.task.reason) == (2, pb.TASK_REASON_RETRY)
    await job.tell(raised())
    await frozen.advance(10 * DAY)
    await frozen_worker.beat()
    assert not frozen_worker.has("task")
    assert await frozen.status("one") == "FAILED"


async def test_a_policy_outlives_the_server(database_url: str, hire_at: Hire) -> None:
    async with start_in_process(database_url) as first:
        await Triggers(first.channel).trigger("one", retry=retry(2, delay=0.01))
        worker = await hire_at(first, hooks=("note",))
        await (await worker.take()).tell(raised())
        await worker.break_off()

    async with start_in_process(database_url) as second:
        worker = await hire_at(second, hooks=("note",))
        job = await worker.take()
        await job.tell(raised())
        assert (job.hook.attempt, job.hook.max_attempts) == (2, 2)
        assert await Triggers(second.channel).status("one") == "FAILED"
        await worker.break_off()


async def test_a_handler_can_say_that_trying_again_is_pointless(triggers: Triggers, worker: HandWorker) -> None:
    await triggers.trigger("one")

    await (await worker.take()).tell(raised("Bad", "no such card", non_retryable=True, details="a trace"))

    hook = await triggers.get("one")
    assert (status_of(hook), hook.attempts) == ("FAILED", 1)
    assert (hook.failure.name, hook.failure.message, hook.failure.details) == ("Bad", "no such card", "a trace")
    assert hook.failure.non_retryable


# ---- workers that are lost


async def test_a_worker_that_is_lost_has_had_its_attempt(brisk: Served, hire_at: Hire) -> None:
    triggers, doomed = Triggers(brisk.channel), await hire_at(brisk, hooks=("note",))
    await triggers.trigger("one", retry=retry(2))
    lost = await doomed.take()
    await doomed.beat(lost)
    await doomed.break_off()

    job = await (await hire_at(brisk, hooks=("note",))).take()

    assert (job.hook.attempt, job.task.reason) == (2, pb.TASK_REASON_TAKEOVER)
    assert job.hook.idempotency_key == lost.hook.idempotency_key
    assert job.fence > lost.fence


async def test_a_task_that_nobody_acknowledged_is_no_attempt(brisk: Served, hire_at: Hire) -> None:
    triggers, deaf = Triggers(brisk.channel), await hire_at(brisk, hooks=("note",))
    await triggers.trigger("one", retry=retry(1))
    lost = await deaf.take(ack=False)
    await age_leases(brisk, ACK_WINDOW)

    job = await (await hire_at(brisk, hooks=("note",))).take()

    assert job.hook.attempt == 1
    await lost.send(returned())
    assert await lost.stale() == "LEASE_LOST"
    assert (await job.tell(returned())).released


async def test_a_hook_that_kills_every_worker_fails_without_another_execution(brisk: Served, hire_at: Hire) -> None:
    triggers = Triggers(brisk.channel)
    await triggers.trigger("one", retry=retry(2))
    for attempt in (1, 2):
        doomed = await hire_at(brisk, hooks=("note",))
        lost = await doomed.take()
        assert lost.hook.attempt == attempt
        await doomed.beat(lost)
        await doomed.break_off()

    survivor = await hire_at(brisk, hooks=("note",))
    hook = await triggers.until("one", "FAILED")

    assert (hook.attempts, hook.failure.message) == (2, "JOB_MAX_ATTEMPTS_EXCEEDED")
    assert hook.HasField("ended_at")
    await survivor.beat()
    assert not survivor.has("task")
    await triggers.trigger("two")
    assert (await survivor.take()).task.key == "two"  # its credit was not used up


async def test_what_a_lost_worker_says_after_the_last_attempt_is_stale(brisk: Served, hire_at: Hire) -> None:
    triggers, doomed = Triggers(brisk.channel), await hire_at(brisk, hooks=("note",))
    await triggers.trigger("one", retry=retry(1))
    lost = await doomed.take(ack=False)
    await doomed.beat(lost)
    await hire_at(brisk, hooks=("note",))
    await age_leases(brisk, LEASE)
    await triggers.until("one", "FAILED")

    await lost.send(returned())

    assert await lost.stale() == "LEASE_LOST"
    assert await triggers.status("one") == "FAILED"


async def test_an_outcome_that_comes_late_but_before_anybody_else_counts(
    triggers: Triggers, worker: HandWorker
) -> None:
    await triggers.trigger("one")
    job = await worker.take()
    await worker.break_off()

    await worker.connect(held=held(job))
    await job.tell(returned())

    assert await triggers.status("one") == "COMPLETED"


async def test_a_worker_that_reconnects_keeps_the_hooks_it_names_and_loses_the_others(
    triggers: Triggers, worker: HandWorker
) -> None:
    await triggers.trigger_many(item("kept"), item("dropped", retry=retry(2)))
    jobs = {job.task.key: job for job in [await worker.take(), await worker.take()]}
    await worker.beat(*jobs.values())
    await worker.break_off()

    welcome = await worker.connect(held=held(jobs["kept"]), credit=9)
    again = await worker.take()

    assert [one.task_id for one in welcome.held] == [jobs["kept"].task_id]
    assert (again.task.key, again.hook.attempt) == ("dropped", 2)
    await jobs["kept"].tell(returned())
    await again.tell(returned())
    assert [await triggers.status(one) for one in ("kept", "dropped")] == ["COMPLETED"] * 2


async def test_a_worker_that_leaves_in_the_middle_has_had_its_attempt(triggers: Triggers, hire: Hire) -> None:
    leaving = await hire(hooks=("note",))
    await triggers.trigger("one")
    job = await leaving.take()
    await leaving.beat(job)
    await leaving.goodbye()

    again = await (await hire(hooks=("note",))).take()

    assert (again.task.key, again.hook.attempt) == ("one", 2)


# ---- time that runs out


async def test_an_execution_that_takes_too_long_has_failed_and_its_worker_is_told(
    frozen: Triggers, frozen_worker: HandWorker
) -> None:
    await frozen.trigger("one", retry=retry(2, delay=5))
    job = await frozen_worker.take()

    await frozen.advance(TIMEOUT)

    assert await job.stale() == "LEASE_LOST"
    hook = await frozen.get("one")
    assert (status_of(hook), hook.attempts, hook.failure.message) == ("PENDING", 1, "JOB_TIMEOUT")
    assert at(hook.next_attempt_at) == await frozen.now() + 5
    await job.send(returned())
    assert await job.stale() == "LEASE_LOST"
    await frozen.advance(5)
    again = await frozen_worker.take()
    await frozen.advance(TIMEOUT)
    assert await again.stale() == "LEASE_LOST"
    assert await frozen.status("one") == "FAILED"
    await again.send(returned())
    assert await again.stale() == "LEASE_LOST"


async def test_an_execution_that_was_carried_to_another_stream_times_out_as_well(
    frozen: Triggers, frozen_worker: HandWorker
) -> None:
    await frozen.trigger("one", retry=retry(1))
    job = await frozen_worker.take()
    await frozen_worker.beat(job)
    await frozen_worker.break_off()
    await frozen_worker.connect(held=held(job))

    await frozen.advance(TIMEOUT)

    assert await job.stale() == "LEASE_LOST"
    assert (await frozen.get("one")).failure.message == "JOB_TIMEOUT"


# ---- without a stream


async def test_a_hook_can_be_executed_call_by_call(server: Served, triggers: Triggers) -> None:
    unary = UnaryWorker(server.channel, hooks=("note",))
    await unary.register()
    await triggers.trigger("one", json="1", retry=retry(2, delay=0))

    (first,) = await unary.claim(request_id="c")
    assert await unary.claim(request_id="c") == [first]
    assert (first.task.key, first.task.hook.payload.json, first.task.hook.attempt) == ("one", "1", 1)
    (renewed,) = await unary.renew([first])
    (answer,) = await unary.commit(first, raised(number=1))
    (again,) = await unary.commit(first, raised(number=1))
    (second,) = await unary.claim(wait=5)
    (last,) = await unary.commit(second, returned(number=1))

    assert renewed.held
    assert (answer.ack.released, again.ack.released, last.ack.released) == (True, True, True)
    assert (second.task.hook.attempt, second.task.hook.idempotency_key) == (2, first.task.hook.idempotency_key)
    assert await triggers.status("one") == "COMPLETED"
    assert (await refusal(unary.commit(first, returned(number=2)))).reason == "LEASE_LOST"


async def test_hooks_that_do_not_fit_into_an_answer_are_left_for_the_next_one(
    server: Served, triggers: Triggers
) -> None:
    """A hook has no second page: without its payload it would be executed for nothing."""
    unary = UnaryWorker(server.channel, hooks=("note",))
    await unary.register()
    large = json.dumps("x" * 900_000)
    for number in range(5):
        await triggers.trigger(f"h{number}", json=large, retry=retry(1))

    first = await unary.claim(10, request_id="c")
    again = await unary.claim(10, request_id="c")
    rest = await unary.claim(10)

    assert again == first
    assert sorted(one.task.key for one in [*first, *rest]) == [f"h{number}" for number in range(5)]
    assert {one.task.hook.payload.json == large for one in [*first, *rest]} == {True}
    assert {one.task.hook.attempt for one in [*first, *rest]} == {1}


async def test_runs_leave_their_room_in_an_answer_to_hooks(server: Served, triggers: Triggers, flows: Flows) -> None:
    """What a run does not bring can be asked for."""
    unary = UnaryWorker(server.channel, hooks=("note",))
    await unary.register()
    large = json.dumps("x" * 900_000)
    for number in range(3):
        await flows.create(f"r{number}", large)
        await triggers.trigger(f"h{number}", json=large)

    claimed = await unary.claim(10)

    assert {one.task.key for one in claimed if one.task.HasField("hook")} == {"h0", "h1", "h2"}
    assert {one.task.key: one.task.workflow.more for one in claimed if one.task.HasField("workflow")} == {
        "r0": True,
        "r1": True,
        "r2": True,
    }
