"""Workers that move between replicas, leave in a hurry, and runs that wait for a clock that stands still."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from stepwell.v1 import clock_pb2
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell_server import databases
from stepwell_server.engine.spine.connections import MOST_CREDIT
from stepwell_server.storage.database.hints import NoHints
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, finish, opening, policy, sleep, suspend, wait_for
from tests.support.workers.workers import HandWorker, UnaryWorker, grant, held

DAY = 86_400


@pytest.fixture
async def replicas(start_server: StartServer, postgres_url: str) -> tuple[Served, Served]:
    """Two servers on one database."""
    return await start_server(postgres_url), await start_server(postgres_url)


async def move(worker: HandWorker, server: Served, **changes: object) -> pb.Welcome:
    """Lose the stream and connect elsewhere."""
    await worker.break_off()
    worker.channel = server.channel
    return await worker.connect(**changes)  # type: ignore[arg-type]


async def test_a_run_that_moved_away_and_back_is_whole(replicas: tuple[Served, Served], hire_at: Hire) -> None:
    """What the second replica committed is not missing at the first one."""
    here, there = replicas
    worker = await hire_at(here)
    flows = Flows(here.channel)
    await flows.create("one")
    job = await worker.take()
    await job.tell(done("a"))

    await move(worker, there, held=held(job))
    await job.tell(done("b"))
    await move(worker, here, held=held(job))
    await job.tell(done("c"))
    await job.send(pb.WorkerFrame(need_state=pb.NeedState()))
    whole = await worker.take()

    assert [*whole.steps] == ["a", "b", "c"]
    assert (await job.tell(finish())).released
    assert {step.attempts for step in (await flows.steps("one")).values()} == {1}


async def test_a_frame_may_go_through_any_replica(replicas: tuple[Served, Served], hire_at: Hire) -> None:
    here, there = replicas
    caller = UnaryWorker(here.channel)
    await caller.register()
    flows = Flows(there.channel)
    await flows.create("one")
    (task,) = await caller.claim()

    await caller.commit(task, done("a", number=1))
    caller.channel = there.channel
    answers = await caller.commit(task, done("a", number=1), done("b", number=2), finish(number=3))

    assert [one.ack.released for one in answers] == [False, False, True]
    assert [*(await flows.steps("one"))] == ["a", "b"]


async def test_a_memory_is_good_at_whichever_replica_its_worker_is(
    replicas: tuple[Served, Served], hire_at: Hire
) -> None:
    here, there = replicas
    worker = await hire_at(here)
    flows = Flows(here.channel)
    await flows.create("one")
    acks = await (await worker.take()).report(done("a"), wait_for("w", "go"), suspend(cached=True))

    await move(worker, there, credit=1)
    await flows.event("one", "go", "1")
    again = await worker.take()

    assert (again.run.cached, again.run.known_revision) == (True, acks[-1].revision)
    assert [*again.steps] == ["w"]


async def test_an_event_wakes_a_run_for_a_worker_at_another_replica(
    replicas: tuple[Served, Served], hire_at: Hire
) -> None:
    here, there = replicas
    worker = await hire_at(here)
    await Flows(there.channel).create("one")
    await (await worker.take()).report(wait_for("w", "go"), suspend())
    await worker.say(grant(1))

    await Flows(there.channel).event("one", "go", "1")

    assert (await worker.take()).steps["w"].result.json == "1"


async def test_an_event_whose_hint_was_lost_is_told_with_the_next_heartbeat(
    start_server: StartServer, postgres_url: str, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "open_hints", lambda *_: NoHints())
    here, there = await start_server(postgres_url), await start_server(postgres_url)
    worker = await hire_at(here)
    await Flows(here.channel).create("one")
    job = await worker.take()
    await job.report(begin(opening("big")), wait_for("w", "go"))
    await Flows(there.channel).event("one", "go", "1")

    await worker.beat(job)

    assert (await job.resolved())["w"].result.json == "1"


async def test_a_run_that_is_ended_at_another_replica_is_taken_from_its_worker(
    replicas: tuple[Served, Served], hire_at: Hire
) -> None:
    here, there = replicas
    worker = await hire_at(here)
    await Flows(here.channel).create("one")
    job = await worker.take()

    await Flows(there.channel).manage("Terminate", "one")

    assert await job.stale() == "RUN_SUPERSEDED"


async def test_nobody_keeps_what_another_session_holds_by_naming_it(hire: Hire, flows: Flows) -> None:
    worker, thief = await hire(worker_id="owner"), await hire(connect=False, worker_id="thief")
    await flows.create("one")
    job = await worker.take()

    welcome = await thief.connect(held=held(job))

    assert not welcome.held
    assert (await job.tell(finish())).released


async def test_what_is_said_with_goodbye_still_counts(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    await worker.say(job.stamp(done("a")), job.stamp(finish("7")), pb.WorkerFrame(goodbye=pb.Goodbye()))
    await worker.until_over()

    assert (await flows.wait("one")).output.json == "7"


async def test_what_came_with_hello_is_taken_in(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()
    await worker.break_off()

    await worker.connect(job.stamp(done("a")), job.stamp(finish()), held=held(job))

    assert (await job.answer(2)).ack.released


async def test_credit_granted_during_a_claim_stays_below_the_most(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=0)
    await flows.create_many(*(flows.item() for _ in range(50)))

    await worker.say(grant(MOST_CREDIT))
    for _ in range(40):
        await worker.say(grant(MOST_CREDIT))
    for _ in range(50):
        await worker.take()

    assert (await worker.beat()).credit <= MOST_CREDIT


# ---- a clock that stands still


@pytest.fixture
async def still(start_server: StartServer, database_url: str) -> Served:
    """A server whose time stands still."""
    return await start_server(database_url, virtual_clock=True)


async def advance(server: Served, seconds: int) -> clock_pb2.AdvanceClockResponse:
    """Move its clock."""
    request = clock_pb2.AdvanceClockRequest(by=Duration(seconds=seconds))
    answer: clock_pb2.AdvanceClockResponse = await ClockServiceStub(server.channel).AdvanceClock(request)
    return answer


async def test_a_year_of_sleep_passes_in_one_call_and_stops_where_work_is_due(still: Served, hire_at: Hire) -> None:
    flows, worker = Flows(still.channel), await hire_at(still, credit=2)
    await flows.create("one")
    acks = await (await worker.take()).report(sleep("nap", 300 * DAY), suspend())

    moving = asyncio.create_task(advance(still, 365 * DAY))
    job = await worker.take()
    now = (await ClockServiceStub(still.channel).GetClock(clock_pb2.GetClockRequest())).now
    await job.tell(finish())

    assert now == acks[0].wake_at
    assert (await moving).arrived
    assert (await flows.get("one")).ended_at == now


async def test_leases_do_not_lapse_with_a_virtual_clock(still: Served, hire_at: Hire) -> None:
    flows, worker = Flows(still.channel), await hire_at(still)
    await flows.create("one")
    job = await worker.take()
    await job.report(begin(opening("a", policy=policy(1, timeout=2 * DAY))), sleep("nap", DAY))

    moving = asyncio.create_task(advance(still, DAY))
    assert step_status((await job.resolved())["nap"]) == "COMPLETED"
    await job.report(done("a"), finish())

    assert (await moving).arrived
    assert (await flows.steps("one"))["a"].attempts == 1


async def test_a_body_that_hangs_until_its_timeout_is_cancelled_by_the_clock(still: Served, hire_at: Hire) -> None:
    flows, worker = Flows(still.channel), await hire_at(still)
    await flows.create("one")
    job = await worker.take()
    await job.tell(begin(opening("a", policy=policy(2, delay=10, timeout=60))))

    moving = asyncio.create_task(advance(still, 60))
    cancel = (await worker.next("cancel", task_id=job.task_id)).cancel
    failed = (await job.resolved())["a"]

    assert cancel.step == "a"
    assert (step_status(failed), failed.attempts, failed.failure.name) == ("WAITING", 1, "StepTimeoutError")
    assert (await job.tell(suspend())).released
    assert (await moving).arrived
