"""Who holds a task: fences, takeovers and what they are charged with, reconnects, streams that break."""

from __future__ import annotations

import pytest

from stepwell.v1 import frames_pb2 as pb
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.servers.servers import Served
from tests.support.workers.frames import begin, done, failed, finish, opening, policy, sleep, suspend, wait_for
from tests.support.workers.workers import (
    ACK_WINDOW,
    LEASE,
    HandWorker,
    Job,
    UnaryWorker,
    age_leases,
    grant,
    held,
    lease_left,
)

GRACE = 5


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker with credit for one task."""
    return await hire(worker_id="first")


@pytest.fixture
async def job(worker: HandWorker, flows: Flows) -> Job:
    """The instance "one", held by the worker."""
    await flows.create("one")
    return await worker.take()


# ---- fences


async def test_a_claim_is_only_for_the_ack_window_and_an_ack_makes_it_a_lease(
    worker: HandWorker, flows: Flows, server: Served
) -> None:
    await flows.create("one")
    job = await worker.take(ack=False)
    assert ACK_WINDOW - 5 < await lease_left(server, job) <= ACK_WINDOW

    await job.send(pb.WorkerFrame(task_ack=pb.TaskAck()))
    await worker.beat()
    await worker.beat(job)

    assert LEASE - 5 < await lease_left(server, job) <= LEASE


async def test_a_task_that_is_not_acknowledged_goes_to_another(brisk: Served, hire_at: Hire) -> None:
    flows, deaf = Flows(brisk.channel), await hire_at(brisk)
    await flows.create("one")
    lost = await deaf.take(ack=False)
    await age_leases(brisk, ACK_WINDOW)

    job = await (await hire_at(brisk)).take()

    assert (job.task_id, job.fence > lost.fence) == (lost.task_id, True)
    assert (job.task.reason, job.run.interruptions) == (pb.TASK_REASON_TAKEOVER, 0)
    assert await lost.stale() == "LEASE_LOST"


async def test_a_heartbeat_renews_what_it_names_and_nothing_else(brisk: Served, hire_at: Hire) -> None:
    flows, worker = Flows(brisk.channel), await hire_at(brisk, credit=2)
    await flows.create("kept")
    await flows.create("forgotten")
    jobs = {job.task.key: job for job in [await worker.take(ack=False), await worker.take(ack=False)]}
    await worker.beat(*jobs.values())
    other = await hire_at(brisk)

    await age_leases(brisk, LEASE - 5)
    await worker.beat(jobs["kept"])
    await age_leases(brisk, 5)

    assert (await other.take()).task.key == "forgotten"
    assert (await jobs["kept"].tell(finish())).released
    assert await jobs["forgotten"].stale() == "LEASE_LOST"


async def test_a_task_of_a_worker_without_a_stream_lives_by_its_renewals(brisk: Served, hire_at: Hire) -> None:
    flows, caller = Flows(brisk.channel), UnaryWorker(brisk.channel)
    await caller.register()
    for key in ("kept", "forgotten"):
        await flows.create(key)
    tasks = {task.task.key: task for task in await caller.claim(2)}
    await caller.renew(tasks.values())
    other = await hire_at(brisk)

    await age_leases(brisk, LEASE - 5)
    (renewed,) = await caller.renew([tasks["kept"]])
    await age_leases(brisk, 5)

    assert renewed.held
    assert (await other.take()).task.key == "forgotten"
    assert [one.held for one in await caller.renew(tasks.values())] == [True, False]


async def test_a_frame_under_an_old_fence_is_told_that_the_lease_is_lost(brisk: Served, hire_at: Hire) -> None:
    flows, first = Flows(brisk.channel), await hire_at(brisk)
    await flows.create("one")
    lost = await first.take()
    await first.break_off()
    job = await (await hire_at(brisk, worker_id="second")).take()

    welcome = await first.connect(held=held(lost))
    await lost.send(done("a", "1"))

    assert not welcome.held
    assert await lost.stale() == "LEASE_LOST"
    assert not await flows.steps("one")
    assert (await job.tell(done("a", "2"))).stop == pb.STOP_NONE


async def test_a_heartbeat_for_a_lost_lease_is_answered_with_stale(job: Job, flows: Flows) -> None:
    await flows.manage("Terminate", "one")

    await job.worker.beat(job)

    assert await job.stale() in ("LEASE_LOST", "RUN_SUPERSEDED")


async def test_a_result_for_a_task_never_given_is_stale_and_the_stream_goes_on(job: Job) -> None:
    stranger = Job(job.worker, 10**15, 7, pb.Task())

    await stranger.send(done("a"))

    assert await stranger.stale() == "LEASE_LOST"
    assert (await job.tell(finish())).released


@pytest.mark.parametrize("verb", ["Terminate", "Restart"])
async def test_a_run_that_was_ended_or_restarted_is_taken_from_its_worker(job: Job, flows: Flows, verb: str) -> None:
    await flows.manage(verb, "one")
    assert await job.stale() == "RUN_SUPERSEDED", "it is told at once"

    await job.send(done("a"), finish())

    assert await job.stale() == "RUN_SUPERSEDED"
    assert not await flows.steps("one")
    assert await flows.status("one") in ("TERMINATED", "QUEUED")


async def test_a_frame_of_an_earlier_run_never_counts_for_a_later_one(job: Job, flows: Flows) -> None:
    await flows.manage("Terminate", "one")
    await flows.manage("Restart", "one")
    await job.worker.say(grant(1))
    again = await job.worker.take()
    assert again.run.run_number == 1 and again.fence > job.fence

    await job.send(done("a", '"old"'))
    await again.tell(done("b"))

    assert [*(await flows.steps("one"))] == ["b"]


async def test_another_session_gets_nothing_with_the_right_fence(job: Job, flows: Flows, hire: Hire) -> None:
    thief = await hire(worker_id="thief")
    stolen = Job(thief, job.task_id, job.fence, job.task)

    await stolen.send(done("a"), finish())
    assert await stolen.stale() == "LEASE_LOST"
    await thief.beat(stolen)
    assert await stolen.stale() == "LEASE_LOST"
    await stolen.send(pb.WorkerFrame(need_state=pb.NeedState()))
    assert await stolen.stale() == "LEASE_LOST"

    assert not await flows.steps("one")
    assert (await job.tell(finish())).released


# ---- attempts


async def test_a_goodbye_during_a_body_is_one_attempt_of_that_body_alone(job: Job, flows: Flows, hire: Hire) -> None:
    await job.report(done("a", opens=[opening("b"), opening("c")]), done("c"))
    await job.worker.goodbye()

    again = await (await hire(worker_id="second")).take()

    assert again.task.reason == pb.TASK_REASON_TAKEOVER
    assert {name: (step_status(step), step.attempts) for name, step in again.steps.items()} == {
        "a": ("COMPLETED", 1),
        "b": ("PENDING", 1),
        "c": ("COMPLETED", 1),
    }
    assert (await again.report(done("b", attempt=2), finish()))[-1].released
    assert (await flows.steps("one"))["b"].attempts == 2


async def test_a_body_that_kills_its_worker_each_time_ends_all_the_same(flows: Flows, hire: Hire) -> None:
    """Siblings that commit in between clear nothing."""
    worker = await hire()
    await flows.create("one")
    limit = policy(2)
    for attempt in (1, 2):
        job = await worker.take()
        await job.report(begin(opening("poison", attempt, policy=limit)), done(f"quick {attempt}"))
        await worker.goodbye()
        worker = await hire()

    step = (await worker.take()).steps["poison"]

    assert (step_status(step), step.attempts) == ("ERRORED", 2)
    assert (step.failure.name, step.failure.message) == ("StepMaxAttemptsExceeded", "STEP_MAX_ATTEMPTS_EXCEEDED")


async def test_nothing_is_charged_between_bodies(job: Job, hire: Hire) -> None:
    await job.tell(done("a"))
    await job.worker.goodbye()

    again = await (await hire()).take()

    assert (again.run.interruptions, [*again.steps]) == (0, ["a"])


async def test_nothing_is_charged_if_a_worker_leaves_before_its_first_body(job: Job, hire: Hire) -> None:
    await job.worker.beat(job)
    await job.worker.goodbye()

    assert (await (await hire()).take()).run.interruptions == 0


async def test_a_worker_lost_before_its_first_frame_may_have_begun_something(brisk: Served, hire_at: Hire) -> None:
    flows, first = Flows(brisk.channel), await hire_at(brisk)
    await flows.create("one")
    await first.take()
    await first.break_off()

    assert (await (await hire_at(brisk)).take()).run.interruptions == 1


async def test_a_failure_after_a_takeover_counts_both_executions(job: Job, flows: Flows, hire: Hire) -> None:
    await job.tell(begin(opening("a", policy=policy(3, delay=0.01))))
    await job.worker.goodbye()
    again = await (await hire()).take()

    await again.tell(failed("a", 2, policy=policy(3, delay=0.01)))

    step = (await flows.steps("one"))["a"]
    assert (step.attempts, step.max_attempts) == (2, 3)


async def test_a_body_that_began_before_any_frame_is_charged_once_it_is_named(job: Job, hire: Hire) -> None:
    await job.tell(done("a", opens=[opening("b", begun=True)]))
    await job.worker.goodbye()

    assert (await (await hire()).take()).steps["b"].attempts == 1


# ---- reconnect


async def test_a_reconnect_keeps_what_it_names_and_returns_the_rest_at_once(
    worker: HandWorker, flows: Flows, hire: Hire
) -> None:
    await worker.say(grant(1))
    await flows.create("kept")
    await flows.create("unseen")
    jobs = {job.task.key: job for job in [await worker.take(), await worker.take()]}
    other = await hire(worker_id="other")
    await worker.break_off()

    welcome = await worker.connect(held=held(jobs["kept"]))
    returned = await other.take()

    assert [one.task_id for one in welcome.held] == [jobs["kept"].task_id]
    assert welcome.connection == 2
    assert returned.task.key == "unseen"
    assert (await jobs["kept"].tell(finish())).released


async def test_what_was_returned_uncharged_began_nowhere(worker: HandWorker, flows: Flows) -> None:
    """A Task that was lost in the stream: its worker does not name it, so it never began."""
    await flows.create("one")
    await worker.take(ack=False)
    await worker.break_off()

    await worker.connect(credit=1)
    again = await worker.take()

    assert (again.run.interruptions, again.task.reason) == (0, pb.TASK_REASON_RUN)


async def test_a_frame_whose_ack_was_lost_is_acknowledged_through_the_next_stream(job: Job, flows: Flows) -> None:
    await job.tell(done("a"))
    await job.worker.break_off()
    await job.worker.connect(held=held(job))

    await job.tell(done("a", "9", number=1))
    await job.report(done("b"), finish())

    assert {name: step.result.json for name, step in (await flows.steps("one")).items()} == {"a": "1", "b": "1"}


async def test_a_wait_that_ends_while_the_worker_is_away_is_told_after_its_return(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), wait_for("w", "go"), sleep("nap", 0.01))
    await job.worker.break_off()
    await flows.event("one", "go", "1")

    await job.worker.connect(held=held(job))

    resolved: dict[str, pb.StepState] = {}
    while set(resolved) != {"w", "nap"}:
        resolved |= await job.resolved()
    assert resolved["w"].result.json == "1"


async def test_a_resolution_that_was_lost_with_its_stream_is_told_again(job: Job, flows: Flows) -> None:
    """The server stored it and wrote it; the worker never read it. It would wait for ever."""
    await job.report(begin(opening("big")), wait_for("w", "go"))
    await flows.event("one", "go", "1")
    await job.resolved()
    await job.worker.break_off()

    await job.worker.connect(held=held(job))

    assert (await job.resolved())["w"].result.json == "1"


async def test_a_retry_that_became_due_unheard_is_told_again(job: Job) -> None:
    await job.report(begin(opening("big"), opening("a")), failed("a", policy=policy(3, delay=0.01)))
    await job.resolved()
    await job.worker.break_off()

    await job.worker.connect(held=held(job))

    assert step_status((await job.resolved())["a"]) == "PENDING"


async def test_an_event_that_came_while_the_worker_was_away_does_not_end_the_wait_twice(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), wait_for("w", "go"))
    await job.worker.break_off()
    await flows.event("one", "go", "1")
    await flows.event("one", "go", "2")
    await job.worker.connect(held=held(job))

    assert (await job.resolved())["w"].result.json == "1"

    entries = (await flows.history("one")).entries
    assert [entry.event.consumed_by_step for entry in entries if entry.HasField("event")] == ["w", ""]


# ---- the end of a stream


async def test_a_goodbye_gives_everything_back_at_once(job: Job, hire: Hire) -> None:
    other = await hire(worker_id="other")

    await job.worker.goodbye()

    assert job.worker.end is None
    assert (await other.take()).task_id == job.task_id


async def test_a_broken_stream_leaves_its_tasks_a_short_grace_only(job: Job, server: Served) -> None:
    await job.worker.beat(job)
    await job.worker.break_off()

    while await lease_left(server, job) > GRACE:
        pass


async def test_an_old_connection_cannot_shorten_the_leases_of_a_new_one(job: Job, server: Served, hire: Hire) -> None:
    """The worker is back before the server has noticed that its first stream is gone."""
    again = await hire(connect=False, session_id=job.worker.session_id)
    await again.connect(held=held(job))

    error = await job.worker.until_over()
    await again.beat()

    assert error is not None and (error.code.name, error.reason) == ("ABORTED", "SUPERSEDED")
    assert await lease_left(server, job) > LEASE - 5
    job.worker = again
    assert (await job.tell(finish())).released


async def test_an_old_connection_cannot_renew_what_a_new_one_gave_up(job: Job, hire: Hire) -> None:
    again = await hire(connect=False, session_id=job.worker.session_id)
    await again.connect()
    assert (await job.worker.until_over()) is not None

    other = await hire(worker_id="other")

    assert (await other.take()).task_id == job.task_id


async def test_a_worker_lost_for_good_is_taken_over_after_its_grace(brisk: Served, hire_at: Hire) -> None:
    flows, worker = Flows(brisk.channel), await hire_at(brisk)
    await flows.create("one")
    job = await worker.take()
    await job.tell(done("a", opens=[opening("b")]))
    await worker.break_off()

    again = await (await hire_at(brisk)).take()

    assert {name: step.attempts for name, step in again.steps.items()} == {"a": 1, "b": 1}
    assert (await again.report(done("b", attempt=2), finish()))[-1].released


async def test_a_suspended_run_costs_its_lost_worker_nothing(job: Job, flows: Flows, hire: Hire) -> None:
    await job.report(wait_for("w", "go"), suspend(cached=True))
    await job.worker.break_off()
    other = await hire(worker_id="other")

    await flows.event("one", "go")
    there = await other.take()

    assert (there.run.cached, there.run.interruptions, [*there.steps]) == (False, 0, ["w"])
