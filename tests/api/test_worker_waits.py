"""Waits, events, suspends and pauses of a run, as its worker sees them."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import frames_pb2 as pb
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.servers.servers import Served
from tests.support.workers.frames import (
    begin,
    done,
    failed,
    finish,
    need_state,
    opening,
    policy,
    sleep,
    suspend,
    wait_for,
)
from tests.support.workers.workers import HandWorker, Job, grant


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker with credit for one task."""
    return await hire()


@pytest.fixture
async def job(worker: HandWorker, flows: Flows) -> Job:
    """The instance "one", held by the worker."""
    await flows.create("one", '{"sku":7}')
    return await worker.take()


# ---- waits open while others execute


async def test_a_wait_is_stored_when_it_opens_and_not_when_the_run_suspends(job: Job, flows: Flows) -> None:
    ack = await job.tell(wait_for("approval", "go", 60))

    step = (await flows.steps("one"))["approval"]
    assert (step_status(step), step.event_type, step.wake_at) == ("WAITING", "go", ack.wake_at)
    assert await flows.status("one") == "RUNNING"


async def test_a_sleep_ends_while_a_sibling_executes(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), sleep("nap", 0.02))

    assert step_status((await job.resolved())["nap"]) == "COMPLETED"
    await job.report(done("b"), done("big"), finish())
    assert await flows.status("one") == "COMPLETE"


async def test_a_retry_is_due_while_a_sibling_executes(job: Job) -> None:
    await job.tell(begin(opening("big"), opening("small")))
    ack = await job.tell(failed("small", policy=policy(3, delay=0.02)))

    resolved = (await job.resolved())["small"]
    assert ack.HasField("wake_at")
    assert (step_status(resolved), resolved.attempts) == ("PENDING", 1)


async def test_a_sleep_of_no_time_is_over_at_once(job: Job) -> None:
    await job.tell(sleep("nap", 0))

    assert step_status((await job.resolved())["nap"]) == "COMPLETED"


async def test_a_sleep_until_a_past_instant_is_over_at_once(job: Job) -> None:
    past = pb.Wait(name="nap", sleep_until=Timestamp(seconds=1))
    await job.tell(pb.WorkerFrame(wait=past))

    assert step_status((await job.resolved())["nap"]) == "COMPLETED"


async def test_an_event_for_a_held_run_is_told_under_the_same_fence(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), wait_for("approval", "go"))

    sent = await flows.event("one", "go", '{"ok":true}')

    step = (await job.resolved())["approval"]
    assert (step_status(step), step.result.json) == ("COMPLETED", '{"ok":true}')
    assert step.event_at == sent.event.created_at


async def test_an_event_through_another_replica_reaches_the_holder(
    start_server: object, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]  # type: ignore[operator]
    worker = await hire_at(here)
    await Flows(here.channel).create("one")
    job = await worker.take()
    await job.report(begin(opening("big")), wait_for("approval", "go"))

    await Flows(there.channel).event("one", "go", "1")

    assert (await job.resolved())["approval"].result.json == "1"


async def test_an_event_that_came_before_its_wait_is_taken_at_once(job: Job, flows: Flows) -> None:
    await flows.event("one", "go", "1")
    await flows.event("one", "go", "2")

    await job.tell(wait_for("first", "go"))
    first = await job.resolved()
    await job.tell(wait_for("second", "go"))
    second = await job.resolved()

    assert [step.result.json for step in (*first.values(), *second.values())] == ["1", "2"], "the oldest first"
    entries = (await flows.history("one")).entries
    assert [entry.event.consumed_by_step for entry in entries if entry.HasField("event")] == ["first", "second"]


async def test_an_event_of_another_type_resolves_nothing(job: Job, flows: Flows) -> None:
    await job.tell(wait_for("approval", "go"))
    await flows.event("one", "stop")
    await job.worker.beat(job)

    assert not job.worker.has("resolved")
    assert (await job.tell(suspend())).released


async def test_a_wait_that_no_event_ends_in_time_errs(job: Job, flows: Flows) -> None:
    await job.tell(wait_for("approval", "go", 1))

    step = (await job.resolved())["approval"]

    assert (step_status(step), step.failure.name) == ("ERRORED", "WaitForEventTimeoutError")
    await flows.event("one", "go")
    await job.worker.beat(job)
    assert not job.worker.has("resolved"), "a late event revives nothing"


# ---- suspend


async def test_a_suspend_gives_the_task_up_until_the_wait_is_over(job: Job, flows: Flows) -> None:
    acks = await job.report(sleep("nap", 0.3), suspend())
    assert acks[-1].released
    assert await flows.status("one") == "WAITING"

    await job.worker.say(grant(1))
    again = await job.worker.take()

    assert (again.task.reason, again.fence > job.fence) == (pb.TASK_REASON_WAKE, True)
    assert step_status(again.steps["nap"]) == "COMPLETED"
    assert not again.run.cached and again.run.params.json == '{"sku":7}'


async def test_a_suspend_that_finds_an_event_keeps_the_lease(job: Job, flows: Flows) -> None:
    """The event comes first, and its news and the worker's suspend cross."""
    await flows.event("one", "go", "1")
    wait, last = await job.report(wait_for("approval", "go"), suspend())

    assert not wait.released and not last.released
    assert (await job.resolved())["approval"].result.json == "1"
    assert (await job.tell(finish())).released


async def test_a_failed_step_waits_for_its_retry_as_such(job: Job, flows: Flows) -> None:
    acks = await job.report(failed("a", policy=policy(3, delay=0.3)), suspend())
    assert acks[-1].released
    step = (await flows.steps("one"))["a"]
    assert (step_status(step), step.attempts, step.max_attempts) == ("WAITING", 1, 3)
    assert step.next_retry_at == acks[0].wake_at

    await job.worker.say(grant(1))
    again = await job.worker.take()

    assert again.task.reason == pb.TASK_REASON_RETRY
    assert (step_status(again.steps["a"]), again.steps["a"].attempts) == ("PENDING", 1)


async def test_the_last_attempt_that_fails_ends_the_step(job: Job, flows: Flows) -> None:
    ack = await job.tell(failed("a", policy=policy(1)))

    assert not ack.HasField("wake_at")
    step = (await flows.steps("one"))["a"]
    assert (step_status(step), step.attempts, step.failure.message) == ("ERRORED", 1, "it broke")


async def test_a_step_that_is_not_worth_a_retry_gets_none(job: Job) -> None:
    assert not (await job.tell(failed("a", non_retryable=True))).HasField("wake_at")


async def test_the_result_of_an_execution_that_is_not_the_open_one_is_dropped(job: Job, flows: Flows) -> None:
    await job.report(failed("a", policy=policy(3)), begin(opening("a", 2)))

    await job.tell(done("a", "1", attempt=1))

    assert step_status((await flows.steps("one"))["a"]) != "COMPLETED"
    await job.tell(done("a", "2", attempt=2))
    assert (await flows.steps("one"))["a"].result.json == "2"


# ---- runs that their worker remembers


async def test_a_run_in_memory_comes_back_to_its_worker_without_its_state(job: Job, flows: Flows, hire: Hire) -> None:
    acks = await job.report(done("a"), wait_for("w", "go"), suspend(cached=True))
    await hire(worker_id="other", credit=1)
    await job.worker.say(grant(1))
    await job.worker.beat()

    await flows.event("one", "go", "1")
    again = await job.worker.take()

    assert again.run.cached
    assert again.run.known_revision == acks[-1].revision < again.run.revision
    assert [*again.steps] == ["w"], "only what is newer"
    assert not again.run.HasField("params")
    assert (await again.report(done("b"), finish()))[-1].released


async def test_a_worker_that_has_forgotten_gets_everything_under_the_same_fence(job: Job, flows: Flows) -> None:
    await job.report(done("a"), wait_for("w", "go"), suspend(cached=True))
    await job.worker.say(grant(1))
    await flows.event("one", "go", "1")
    again = await job.worker.take()
    assert again.run.cached

    await again.send(need_state())
    whole = await job.worker.take()

    assert (whole.task_id, whole.fence) == (again.task_id, again.fence)
    assert not whole.run.cached and whole.run.params.json == '{"sku":7}'
    assert [*whole.steps] == ["a", "w"]
    assert (await whole.tell(finish())).released


async def test_another_worker_gets_everything_of_a_run_that_somebody_remembers(
    job: Job, flows: Flows, hire: Hire
) -> None:
    await job.report(done("a"), wait_for("w", "go"), suspend(cached=True))
    other = await hire(worker_id="other")
    await other.beat()

    await flows.event("one", "go", "1")
    there = await other.take()

    assert not there.run.cached
    assert [*there.steps] == ["a", "w"]


async def test_a_run_that_went_on_elsewhere_is_not_taken_from_an_old_memory(job: Job, flows: Flows, hire: Hire) -> None:
    await job.report(wait_for("w", "go"), suspend(cached=True))
    other = await hire(worker_id="other")
    await flows.event("one", "go")
    await (await other.take()).report(done("elsewhere"), wait_for("v", "go"), suspend())
    await job.worker.say(grant(1))

    await flows.event("one", "go")
    again = await job.worker.take()

    assert not again.run.cached
    assert set(again.steps) == {"w", "elsewhere", "v"}


async def test_need_state_for_a_task_that_is_not_held_is_told_so(job: Job) -> None:
    await job.tell(finish())

    await job.send(need_state())

    assert await job.stale() in ("LEASE_LOST", "RUN_SUPERSEDED")


# ---- pause


async def test_a_result_is_kept_and_the_run_parked_when_it_is_to_pause(job: Job, flows: Flows) -> None:
    assert (await flows.manage("Pause", "one")).status == 4, "waiting for pause"

    result, last = await job.report(done("a", "1"), finish())

    assert (result.stop, last.stop, last.released) == (pb.STOP_PAUSE, pb.STOP_PAUSE, True)
    assert await flows.status("one") == "PAUSED"
    assert (await flows.steps("one"))["a"].result.json == "1"
    await flows.manage("Resume", "one")
    await job.worker.say(grant(1))
    again = await job.worker.take()
    assert (again.task.reason, [*again.steps]) == (pb.TASK_REASON_RESUME, ["a"])
    assert (await again.tell(finish())).released


async def test_a_pause_waits_for_all_bodies_that_execute_and_begins_no_others(job: Job, flows: Flows) -> None:
    await job.tell(begin(opening("a"), opening("b")))
    await flows.manage("Pause", "one")

    first = await job.tell(done("a", opens=[opening("c")]))
    assert (first.stop, first.released) == (pb.STOP_PAUSE, False)
    second = await job.tell(done("b"))

    assert (second.stop, second.released) == (pb.STOP_PAUSE, True)
    assert await flows.status("one") == "PAUSED"
    assert {*(await flows.steps("one"))} == {"a", "b"}


async def test_a_suspend_does_not_overwrite_a_pause(job: Job, flows: Flows) -> None:
    await job.tell(wait_for("w", "go"))
    await flows.manage("Pause", "one")

    ack = await job.tell(suspend(cached=True))

    assert (ack.stop, ack.released) == (pb.STOP_PAUSE, True)
    assert await flows.status("one") == "PAUSED"


async def test_a_pause_that_is_withdrawn_in_time_changes_nothing(job: Job, flows: Flows) -> None:
    await flows.manage("Pause", "one")
    assert (await flows.manage("Resume", "one")).status == 2, "running"

    assert (await job.tell(finish())).stop == pb.STOP_NONE
    assert await flows.status("one") == "COMPLETE"


async def test_a_pause_of_a_run_that_waits_is_at_once_and_clocks_go_on(job: Job, flows: Flows) -> None:
    acks = await job.report(sleep("nap", 0.05), suspend())
    assert (await flows.manage("Pause", "one")).status == 5, "paused"
    await job.worker.say(grant(1))

    await flows.manage("Resume", "one")
    again = await job.worker.take()

    assert again.task.reason == pb.TASK_REASON_RESUME
    assert again.steps["nap"].wake_at == acks[0].wake_at


async def test_an_event_during_a_pause_is_kept_for_the_resume(job: Job, flows: Flows) -> None:
    await job.report(wait_for("w", "go"), suspend())
    await flows.manage("Pause", "one")
    assert (await flows.event("one", "go", "1")).status == 5, "paused"
    await job.worker.say(grant(1))

    await flows.manage("Resume", "one")

    assert (await job.worker.take()).steps["w"].result.json == "1"


async def test_a_finish_with_an_undelivered_event_ends_the_run_all_the_same(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), wait_for("w", "go"))
    await flows.event("one", "go")

    await job.send(done("big"), finish())
    assert (await job.answer(job.number)).ack.released
    assert await flows.status("one") == "COMPLETE"


async def test_a_worker_hears_that_a_pause_is_wanted_while_nothing_is_said(
    job: Job, flows: Flows, server: Served
) -> None:
    """A long body does not stop for it: the pause is at the next boundary, and the lease is kept until then."""
    await job.tell(begin(opening("long")))
    await flows.manage("Pause", "one")

    await job.worker.beat(job)

    assert await flows.status("one") == "WAITING_FOR_PAUSE"
    assert (await job.tell(done("long"))).released
