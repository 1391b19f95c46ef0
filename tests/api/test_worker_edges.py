"""Stories at the edges of a run: what crosses, repeats itself, or comes too late."""

from __future__ import annotations

import pytest

from stepwell.errors import reason_name
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.workers.frames import begin, done, failed, finish, opening, policy, sleep, suspend, wait_for
from tests.support.workers.workers import HandWorker, Job, grant


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker with credit for one task."""
    return await hire()


@pytest.fixture
async def job(worker: HandWorker, flows: Flows) -> Job:
    """The instance "one", held by the worker."""
    await flows.create("one")
    return await worker.take()


async def test_an_event_ends_one_wait_and_the_oldest_first(job: Job, flows: Flows) -> None:
    await job.report(begin(opening("big")), wait_for("first", "go"), wait_for("second", "go"))

    await flows.event("one", "go", "1")
    assert [(name, step.result.json) for name, step in (await job.resolved()).items()] == [("first", "1")]
    await flows.event("one", "go", "2")

    assert [(name, step.result.json) for name, step in (await job.resolved()).items()] == [("second", "2")]


async def test_a_wait_that_is_over_and_asked_for_again_is_told_again(job: Job, flows: Flows) -> None:
    first = await job.tell(wait_for("w", "go"))
    await flows.event("one", "go", "1")
    await job.resolved()

    again = await job.tell(wait_for("w", "go"))

    assert again.wake_at == first.wake_at
    assert (await job.resolved())["w"].result.json == "1"


async def test_a_step_that_is_done_stays_as_it_is(job: Job, flows: Flows) -> None:
    """And who says otherwise has gone on with what is not stored: the run is taken from it."""
    await job.tell(done("a", "1"))

    await job.send(done("a", "2", attempt=2), finish("2"))

    assert await job.stale() == "LEASE_LOST"
    step = (await flows.steps("one"))["a"]
    assert (step_status(step), step.result.json, step.attempts) == ("COMPLETED", "1", 1)


async def test_a_frame_after_the_one_that_gave_the_task_up_is_too_late(job: Job, flows: Flows) -> None:
    await job.report(wait_for("w", "go"), suspend())

    await job.send(done("late"))

    assert await job.stale() == "LEASE_LOST"
    assert [*(await flows.steps("one"))] == ["w"]


async def test_a_frame_after_finish_is_not_stored(job: Job, flows: Flows) -> None:
    await job.tell(finish("1"))

    await job.send(done("late"), finish("2"))

    frame = await job.worker.next("stale", "ack", "refused", task_id=job.task_id)
    assert frame.WhichOneof("body") in ("stale", "ack")
    assert (await flows.get("one")).output.json == "1"
    assert not await flows.steps("one")


async def test_a_retry_comes_back_to_the_worker_that_remembers_the_run(job: Job) -> None:
    acks = await job.report(done("a"), failed("b", policy=policy(3, delay=0.2)), suspend(cached=True))
    await job.worker.say(grant(1))

    again = await job.worker.take()

    assert (again.task.reason, again.run.cached) == (pb.TASK_REASON_RETRY, True)
    assert again.run.known_revision == acks[-1].revision
    assert {name: step_status(step) for name, step in again.steps.items()} == {"b": "PENDING"}


async def test_a_restart_is_never_taken_from_memory(job: Job, flows: Flows) -> None:
    await job.report(done("a"), wait_for("w", "go"), suspend(cached=True))
    await job.worker.say(grant(1))

    await flows.manage("Restart", "one")
    again = await job.worker.take()

    assert (again.run.run_number, again.run.cached, [*again.steps]) == (1, False, [])
    assert again.run.HasField("params")


async def test_a_worker_lost_while_its_run_was_to_pause_leaves_it_paused_and_charged(
    job: Job, flows: Flows, hire: Hire
) -> None:
    await job.tell(begin(opening("a")))
    await flows.manage("Pause", "one")

    await job.worker.goodbye()
    assert await flows.status("one") == "PAUSED"
    await flows.manage("Resume", "one")
    again = await (await hire()).take()

    assert (step_status(again.steps["a"]), again.steps["a"].attempts) == ("PENDING", 1)


async def test_a_retry_keeps_its_time_through_a_pause(job: Job, flows: Flows) -> None:
    ack = await job.tell(failed("a", policy=policy(3, delay=60)))
    await flows.manage("Pause", "one")
    assert (await job.tell(suspend())).released
    await flows.manage("Resume", "one")
    await job.worker.say(grant(1))

    again = await job.worker.take()

    assert (step_status(again.steps["a"]), again.steps["a"].wake_at) == ("WAITING", ack.wake_at)


async def test_a_thousand_frames_in_one_message_are_acknowledged_in_order(job: Job, flows: Flows) -> None:
    frames = [done(f"s{number}", str(number)) for number in range(999)]

    acks = await job.report(*frames, finish())

    revisions = [ack.revision for ack in acks]
    assert revisions == sorted(set(revisions))
    assert acks[-1].released
    newest = await flows.history("one", page_size=1, order=workflows_pb2.LIST_ORDER_NEWEST_FIRST)
    assert newest.entries[0].step.name == "s998"


@pytest.mark.parametrize("lease", [(0, 0), (-1, -1), (2**63 - 1, 2**63 - 1)], ids=str)
async def test_leases_that_cannot_be_are_stale_and_the_stream_goes_on(job: Job, lease: tuple[int, int]) -> None:
    task_id, fence = lease
    nobody = Job(job.worker, task_id, fence, pb.Task())

    await nobody.send(done("a"))
    frame = await job.worker.next("stale")
    await job.worker.beat(nobody)

    assert (frame.task_id, reason_name(frame.stale.reason)) == (task_id, "LEASE_LOST")
    assert (await job.tell(finish())).released


async def test_frames_of_many_runs_travel_in_one_message(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=20)
    await flows.create_many(*(flows.item(f"i{number}") for number in range(20)))
    jobs = [await worker.take() for _ in range(20)]

    await worker.say(*(job.stamp(frame) for frame in (done("a"), done("b"), finish()) for job in jobs))

    for job in jobs:
        assert [(await job.answer(number)).ack.released for number in (1, 2, 3)] == [False, False, True]


async def test_a_bad_frame_beside_good_ones_harms_nobody(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=2)
    await flows.create("bad")
    await flows.create("good")
    bad, good = await worker.take(), await worker.take()

    await worker.say(bad.stamp(done("a", "{")), good.stamp(finish()), bad.stamp(finish()))

    assert (await good.answer(1)).ack.released
    assert (await bad.answer(1)).HasField("refused")
    assert (await bad.answer(2)).ack.released, "the frames after it count as if it had not been sent"


async def test_a_sleep_and_an_event_are_judged_each_by_its_own_time(job: Job, flows: Flows) -> None:
    acks = await job.report(sleep("short", 0.2), sleep("long", 3600), wait_for("w", "go"), suspend())
    assert (await flows.get("one")).wake_at == acks[0].wake_at
    await job.worker.say(grant(1))

    again = await job.worker.take()

    statuses = {name: step_status(step) for name, step in again.steps.items()}
    assert statuses == {"short": "COMPLETED", "long": "WAITING", "w": "WAITING"}
    assert again.steps["long"].wake_at == acks[1].wake_at
    assert (await again.tell(suspend())).released
    assert (await flows.get("one")).wake_at == acks[1].wake_at


async def test_what_a_workflow_is_for_is_what_the_newest_registration_says(hire: Hire, flows: Flows) -> None:
    for text in ("old", "new"):
        worker = await hire(connect=False)
        described = pb.Handler(kind=pb.HANDLER_KIND_WORKFLOW, name="order")
        described.workflow.description = text
        await worker.connect(handlers=[described])

    listed = (await flows.stub.ListWorkflows(workflows_pb2.ListWorkflowsRequest())).workflows

    assert [(one.name, one.description, one.worker_count) for one in listed] == [("order", "new", 2)]


async def test_a_description_that_is_too_long_is_refused(hire: Hire) -> None:
    worker = await hire(connect=False)
    described = pb.Handler(kind=pb.HANDLER_KIND_WORKFLOW, name="order")
    described.workflow.description = "x" * 1025
    worker.open()

    await worker.say(pb.WorkerFrame(hello=worker.hello(handlers=[described])))
    error = await worker.until_over()

    assert error is not None and (error.reason, error.metadata["field"]) == ("INVALID_FIELD", "description")
