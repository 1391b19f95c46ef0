"""Runs whose state does not fit into one message."""

from __future__ import annotations

import pytest

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import RetryPolicy
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows
from tests.support.servers.servers import Served
from tests.support.workers.frames import begin, done, failed, finish, need_state, opening, policy, suspend, wait_for
from tests.support.workers.workers import HandWorker, UnaryWorker, grant

UNLIMITED = pb.StepPolicy(retry=RetryPolicy(unlimited=True))
LARGE = '"' + "x" * 900_000 + '"'
MESSAGE = 4 * 1024 * 1024
NAMES = [f"s{number}" for number in range(7)]


@pytest.fixture
async def worker(hire: Hire, flows: Flows) -> HandWorker:
    """A worker that has suspended a run with seven large results."""
    worker = await hire()
    await flows.create("one", LARGE)
    job = await worker.take()
    for name in NAMES:
        await job.tell(done(name, LARGE))
    await job.report(wait_for("w", "go"), suspend(cached=True))
    await flows.event("one", "go")
    return worker


async def state_of(worker: HandWorker, first: pb.WorkflowInput) -> list[pb.StepState]:
    """All steps of a task, from as many frames as they come in."""
    steps, more = list(first.steps), first.more
    while more:
        state = (await worker.next("task_state")).task_state
        steps += state.steps
        more = state.more
    return steps


async def test_a_large_state_comes_in_several_messages_that_all_fit(worker: HandWorker, hire: Hire) -> None:
    await worker.break_off()
    other = await hire(worker_id="other")

    job = await other.take()
    steps = await state_of(other, job.run)

    assert job.run.more and job.run.params.json == LARGE
    assert [step.name for step in steps] == [*NAMES, "w"]
    assert all(step.result.json == LARGE for step in steps[:-1])
    assert max(message.ByteSize() for message in other.messages) < MESSAGE
    assert (await job.tell(finish())).released


async def test_a_large_state_that_was_asked_for_comes_in_order(worker: HandWorker) -> None:
    await worker.say(grant(1))
    job = await worker.take()
    assert job.run.cached and not job.run.more

    await job.send(need_state())
    whole = await worker.take()

    assert [step.name for step in await state_of(worker, whole.run)] == [*NAMES, "w"]
    assert max(message.ByteSize() for message in worker.messages) < MESSAGE


async def test_a_large_state_is_read_by_call_a_page_at_a_time(worker: HandWorker, server: Served, flows: Flows) -> None:
    await worker.break_off()
    caller = UnaryWorker(server.channel)
    await caller.register()

    (task,) = await caller.claim(wait=5)  # for a moment it is left to the worker that had it in memory
    steps, more = list(task.task.workflow.steps), task.task.workflow.more
    while more:
        (page,) = await caller.commit(task, need_state(len(steps)))
        assert page.ByteSize() < MESSAGE
        assert page.task.workflow.steps, "no page is empty while there is more"
        steps += page.task.workflow.steps
        more = page.task.workflow.more

    assert [step.name for step in steps] == [*NAMES, "w"]
    assert (await caller.commit(task, finish(number=1)))[0].ack.released


async def test_many_large_tasks_claimed_at_once_fit_into_one_answer(server: Served, flows: Flows) -> None:
    caller = UnaryWorker(server.channel)
    await caller.register()
    for number in range(6):
        await flows.create(f"i{number}", LARGE)

    frames = await caller.claim(6)

    assert sum(frame.ByteSize() for frame in frames) < MESSAGE
    params = {}
    for frame in frames:
        workflow = frame.task.workflow
        if workflow.more:
            (page,) = await caller.commit(frame, need_state())
            workflow = page.task.workflow
        params[frame.task.key] = workflow.params.json
    assert params == {f"i{number}": LARGE for number in range(6)}


async def test_many_large_tasks_sent_at_once_come_in_messages_that_fit(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=0)
    for number in range(6):
        await flows.create(f"i{number}", LARGE)

    await worker.say(grant(6))
    jobs = [await worker.take() for _ in range(6)]

    assert all(job.run.params.json == LARGE for job in jobs)
    assert max(message.ByteSize() for message in worker.messages) < MESSAGE


async def test_a_step_says_how_often_it_may_be_executed_whatever_later_code_wants(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=2)
    await flows.create("one")
    job = await worker.take()
    await job.report(failed("thrice", policy=policy(3, delay=60)), failed("ever", policy=UNLIMITED), done("once"))
    await job.report(wait_for("w", "go"), suspend())
    await flows.event("one", "go")
    again = await worker.take()
    await again.tell(begin(opening("thrice", 2, policy=policy(9))))

    await worker.say(again.stamp(need_state()))
    state = await worker.take(ack=False)

    stored = {name: step.max_attempts for name, step in state.steps.items()}
    assert stored == {"thrice": 3, "ever": 0, "once": 6, "w": 0}


async def test_a_state_has_the_results_that_were_sent_before_it_was_asked_for(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    for number in range(10):
        await job.send(done(f"s{number}"), need_state())
        whole = await worker.take(ack=False)
        assert f"s{number}" in whole.steps


async def test_a_state_that_is_asked_for_many_times_at_once_comes_once(worker: HandWorker) -> None:
    """Each is as large as the run, and waits for the worker to read it."""
    await worker.say(grant(1))
    job = await worker.take()

    for _ in range(2):
        await job.send(*[need_state()] * 100)
    await state_of(worker, (await worker.take()).run)
    await worker.beat(job)

    assert not worker.has("task")
