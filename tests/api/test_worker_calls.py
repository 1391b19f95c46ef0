"""The unary twins: everything that a stream does, one call each; and the list of workers."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from stepwell.errors import reason_name
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.storage.schema import sessions
from stepwell_server.storage.spine.sessions import CALLER_SEEN
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows, step_status
from tests.support.calls.triggers import Triggers, status_of
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import (
    begin,
    done,
    failed,
    finish,
    need_state,
    opening,
    policy,
    seconds,
    sleep,
    suspend,
    task_ack,
    wait_for,
)
from tests.support.workers.workers import WORKFLOW, UnaryWorker, grant


@pytest.fixture
async def caller(server: Served) -> UnaryWorker:
    """A registered worker without a stream."""
    worker = UnaryWorker(server.channel)
    await worker.register()
    return worker


def bodies(frames: list[pb.ServerFrame]) -> list[str | None]:
    """What kinds of frames these are."""
    return [frame.WhichOneof("body") for frame in frames]


async def test_a_run_is_claimed_and_finished_without_a_stream(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one", '{"sku":7}')

    (task,) = await caller.claim()
    answers = await caller.commit(task, task_ack(), done("a", number=1), done("b", number=2), finish('"ok"', number=3))

    assert (task.task.key, task.task.workflow.params.json) == ("one", '{"sku":7}')
    assert [(one.number, one.ack.released) for one in answers] == [(1, False), (2, False), (3, True)]
    assert (await flows.wait("one")).output.json == '"ok"'


async def test_nothing_due_is_an_empty_answer(caller: UnaryWorker) -> None:
    assert await caller.claim() == []


async def test_no_more_is_claimed_than_was_asked_for(caller: UnaryWorker, flows: Flows) -> None:
    for number in range(4):
        await flows.create(f"i{number}")

    assert [len(await caller.claim(most)) for most in (0, 2, 100)] == [1, 2, 1]


async def test_a_claim_waits_for_work(caller: UnaryWorker, flows: Flows) -> None:
    claiming = asyncio.create_task(caller.claim(wait=10))
    await asyncio.sleep(0)
    await flows.create("one")

    (task,) = await claiming

    assert task.task.key == "one"


async def test_a_claim_waits_for_a_timer(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    await caller.commit(task, sleep("nap", 0.3, number=1), suspend(number=2))

    async with asyncio.timeout(PATIENCE):
        (again,) = await caller.claim(wait=30)

    assert step_status(again.task.workflow.steps[0]) == "COMPLETED"


async def test_a_claim_can_name_some_of_its_handlers(server: Served, flows: Flows) -> None:
    caller = UnaryWorker(server.channel, ("order", "bill"))
    await caller.register()
    await flows.create("one")
    await Flows(server.channel, "bill").create("two")

    request = pb.ClaimTasksRequest(session_id=caller.session_id, max_tasks=5)
    request.handlers.add(kind=WORKFLOW, name="bill")
    answer = await caller.stub.ClaimTasks(request)

    assert [frame.task.key for frame in answer.frames] == ["two"]


async def test_a_repeated_claim_returns_those_that_are_still_held(caller: UnaryWorker, flows: Flows) -> None:
    for number in range(3):
        await flows.create(f"i{number}")
    first = await caller.claim(2, request_id="once")
    assert {one.task.key for one in first} == {"i0", "i1"}

    again = await caller.claim(2, request_id="once")
    assert {(one.task_id, one.fence) for one in again} == {(one.task_id, one.fence) for one in first}
    await caller.commit(first[0], finish(number=1))

    assert [one.task_id for one in await caller.claim(2, request_id="once")] == [first[1].task_id]
    error = await refusal(caller.stub.ClaimTasks(asked_of(caller, max_tasks=3, request_id="once")))
    assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED")


async def test_two_claims_with_one_request_id_at_once_do_not_lose_a_task(caller: UnaryWorker, flows: Flows) -> None:
    """What one of them leased and does not name would be held by nobody until it lapses."""
    await flows.create("one")
    await flows.create("two")

    answers = await asyncio.gather(*(caller.claim(1, request_id="once") for _ in range(2)))

    held = {one.task.key for answer in answers for one in answer}
    left = {one.task.key for one in await caller.claim(2)}
    assert held | left == {"one", "two"}


def asked_of(caller: UnaryWorker, **fields: object) -> pb.ClaimTasksRequest:
    """A claim of this session."""
    return pb.ClaimTasksRequest(**{"session_id": caller.session_id} | fields)  # type: ignore[arg-type]


async def test_a_claim_that_breaks_a_rule_is_refused(caller: UnaryWorker, server: Served) -> None:
    stranger = UnaryWorker(server.channel)
    refused = {
        "SESSION_NOT_REGISTERED": asked_of(stranger),
        "INVALID_SESSION_ID": pb.ClaimTasksRequest(session_id="short"),
        "INVALID_FIELD": asked_of(caller, max_tasks=-1),
        "DURATION_OUT_OF_RANGE": asked_of(caller, wait=seconds(31)),
        "NAMESPACE_NOT_FOUND": asked_of(caller, namespace="nowhere"),
    }

    reasons = [(await refusal(caller.stub.ClaimTasks(request))).reason for request in refused.values()]

    assert reasons == [*refused]


async def test_a_session_with_a_stream_may_not_claim_or_register(hire: Hire, server: Served) -> None:
    worker = await hire(credit=0)
    caller = UnaryWorker(server.channel, session_id=worker.session_id)

    claim = await refusal(caller.claim())
    register = await refusal(caller.register())

    assert (claim.code.name, claim.reason) == ("FAILED_PRECONDITION", "SESSION_HAS_STREAM")
    assert register.reason == "SESSION_HAS_STREAM"
    await worker.goodbye()
    assert await caller.register()


async def test_a_claim_is_only_for_the_ack_window_until_it_is_renewed(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(database_url, leases={"ack_window": 0.01, "lease": 60})
    caller, flows = UnaryWorker(server.channel), Flows(server.channel)
    await caller.register()
    await flows.create("one")
    (task,) = await caller.claim()

    (renewed,) = await caller.renew([task])

    assert renewed.held, "nobody took it over yet, so it is still theirs"
    assert bodies(await caller.commit(task, finish(number=1))) == ["ack"]


async def test_renewals_are_answered_one_by_one(caller: UnaryWorker, flows: Flows) -> None:
    for key in ("kept", "ended", "paused", "woken"):
        await flows.create(key)
    tasks = {task.task.key: task for task in await caller.claim(4)}
    await flows.manage("Terminate", "ended")
    await flows.manage("Pause", "paused")
    await caller.commit(tasks["woken"], begin(opening("a"), number=1), wait_for("w", "go", number=2))
    await flows.event("woken", "go")

    results = dict(zip(tasks, await caller.renew(tasks.values()), strict=True))

    assert {key: one.held for key, one in results.items()} == {
        "kept": True,
        "ended": False,
        "paused": True,
        "woken": True,
    }
    assert results["paused"].stop == pb.STOP_PAUSE and results["kept"].stop == pb.STOP_NONE
    assert results["woken"].wake_again and not results["kept"].wake_again
    resolved = await caller.commit(tasks["woken"], done("b", number=3))
    assert bodies(resolved) == ["ack", "resolved"]


async def test_a_step_that_takes_too_long_is_ended_by_a_renewal_and_told_with_the_next_report(still: Served) -> None:
    caller, flows = await hired(still), Flows(still.channel)
    await flows.create("one")
    (task,) = await caller.claim()
    await caller.commit(task, begin(opening("slow", policy=policy(2, delay=60, timeout=5)), number=1))
    before = (await caller.renew([task]))[0]

    await Triggers(still.channel).advance(6)
    (renewed,) = await caller.renew([task])
    step = (await flows.steps("one"))["slow"]

    assert before.held and not before.wake_again
    assert renewed.held and renewed.wake_again
    assert (step_status(step), step.attempts, step.failure.name) == ("WAITING", 1, "StepTimeoutError")
    assert (await caller.renew([task]))[0].wake_again, "until it is told"
    told = await caller.commit(task, done("b", number=2))
    assert bodies(told) == ["ack", "resolved"]
    assert [one.name for one in told[1].resolved.steps] == ["slow"]
    assert not (await caller.renew([task]))[0].wake_again
    assert (await refusal(caller.commit(task, done("slow", number=3)))).reason == "LEASE_LOST"


async def test_a_renewal_says_that_a_sleep_is_over(still: Served) -> None:
    caller, flows = await hired(still), Flows(still.channel)
    await flows.create("one")
    (task,) = await caller.claim()
    await caller.commit(task, sleep("nap", 5, number=1), begin(opening("a"), number=2))

    await Triggers(still.channel).advance(6)
    (renewed,) = await caller.renew([task])

    assert renewed.held and renewed.wake_again
    assert bodies(await caller.commit(task, done("a", number=3))) == ["ack", "resolved"]


async def test_a_hook_that_takes_too_long_is_lost_to_whoever_renews_it(still: Served) -> None:
    caller, hooks = UnaryWorker(still.channel, (), hooks=("note",)), Triggers(still.channel)
    await caller.register()
    await hooks.trigger("one")
    (task,) = await caller.claim()
    assert (await caller.renew([task]))[0].held

    await hooks.advance(601)

    assert not (await caller.renew([task]))[0].held
    hook = await hooks.get("one")
    assert (status_of(hook), hook.failure.name) == ("PENDING", "JobTimeoutError")


async def hired(served: Served) -> UnaryWorker:
    """A registered worker of that server."""
    worker = UnaryWorker(served.channel)
    await worker.register()
    return worker


async def test_too_many_renewals_at_once_are_refused(caller: UnaryWorker) -> None:
    tasks = [pb.ServerFrame(task_id=number, fence=1) for number in range(1, 1002)]

    assert (await refusal(caller.renew(tasks))).reason == "BATCH_TOO_LARGE"
    assert {one.held for one in await caller.renew(tasks[:1000])} == {False}


async def test_a_suspend_by_call_finds_the_event_that_came(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    await flows.event("one", "go", "1")

    answers = await caller.commit(task, wait_for("w", "go", number=1), suspend(number=2))

    assert bodies(answers) == ["ack", "ack", "resolved"]
    assert not answers[1].ack.released
    assert answers[2].resolved.steps[0].result.json == "1"


async def test_a_commit_is_answered_frame_by_frame_and_again_when_repeated(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    frames = (done("a", number=1), done("b", "no json", number=2), failed("c", policy=policy(2, delay=60), number=3))

    first = await caller.commit(task, *frames)
    again = await caller.commit(task, *frames)

    assert bodies(first) == ["ack", "refused", "ack"]
    assert reason_name(first[1].refused.reason) == "PAYLOAD_NOT_JSON"
    assert bodies(again)[0] == "ack" and again[2].ack.wake_at == first[2].ack.wake_at
    assert {*(await flows.steps("one"))} == {"a", "c"}


async def test_a_finish_repeated_by_call_is_acknowledged_again(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    await caller.commit(task, done("a", number=1), finish(number=2))

    answers = await caller.commit(task, done("a", number=1), finish(number=2))

    assert [one.ack.released for one in answers] == [True, True]


@pytest.mark.parametrize("verb", ["Terminate", "Restart"])
async def test_a_commit_after_the_run_was_taken_away_is_refused(caller: UnaryWorker, flows: Flows, verb: str) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    await flows.manage(verb, "one")

    error = await refusal(caller.commit(task, done("a", number=1)))

    assert (error.code.name, error.reason) == ("ABORTED", "RUN_SUPERSEDED")


async def test_a_commit_with_a_wrong_fence_or_session_is_refused(caller: UnaryWorker, server: Served) -> None:
    await Flows(server.channel).create("one")
    (task,) = await caller.claim()
    thief = UnaryWorker(server.channel)
    await thief.register()
    guessed = pb.ServerFrame(task_id=task.task_id, fence=task.fence + 1)

    errors = [
        await refusal(thief.commit(task, finish(number=1))),
        await refusal(thief.commit(task, need_state())),
        await refusal(thief.commit(task, task_ack())),
        await refusal(caller.commit(guessed, finish(number=1))),
    ]

    assert {(error.code.name, error.reason) for error in errors} == {("ABORTED", "LEASE_LOST")}
    assert not (await thief.renew([task]))[0].held


async def test_a_commit_that_is_not_about_one_task_is_refused(caller: UnaryWorker, flows: Flows) -> None:
    await flows.create("one")
    (task,) = await caller.claim()
    mixed = [pb.WorkerFrame(task_id=number, fence=1, number=1, finish=pb.Finish()) for number in (1, 2)]
    request = pb.CommitTaskRequest(session_id=caller.session_id, frames=mixed)

    errors = [
        await refusal(caller.stub.CommitTask(request)),
        await refusal(caller.commit(task)),
        await refusal(caller.commit(task, grant(1))),
        await refusal(caller.commit(task, pb.WorkerFrame(goodbye=pb.Goodbye()))),
        await refusal(caller.commit(task, *[done(f"s{number}", number=number) for number in range(1, 102)])),
        await refusal(caller.commit(task, done("a", number=0))),
    ]

    assert {(error.code.name, error.reason) for error in errors} == {("INVALID_ARGUMENT", "INVALID_FIELD")}
    assert not await flows.steps("one")


# ---- who is there


async def test_workers_are_listed_with_what_they_run(hire: Hire, flows: Flows, server: Served) -> None:
    worker = await hire("order", "bill", worker_id="host-1", credit=2)
    caller = UnaryWorker(server.channel)
    await caller.register()
    await flows.create("one")
    await worker.take()

    streaming, unary = (await WorkerServiceStub(server.channel).ListWorkers(pb.ListWorkersRequest())).workers

    assert (streaming.worker_id, streaming.sdk, bool(streaming.replica_id)) == ("host-1", "by-hand/1", True)
    assert {one.name for one in streaming.handlers} == {"order", "bill"}
    assert [(one.handler.name, one.key) for one in streaming.tasks] == [("order", "one")]
    assert streaming.task_count == 1 and streaming.tasks[0].claimed_at.seconds > 0
    assert (unary.worker_id, unary.replica_id, unary.task_count) == ("unary", "", 0)
    assert worker.session_id not in str(streaming) and caller.session_id not in str(unary)


async def test_a_worker_that_left_is_listed_no_longer(hire: Hire, server: Served) -> None:
    leaving, staying = await hire(worker_id="leaving"), await hire(worker_id="staying")

    await leaving.goodbye()

    async with asyncio.timeout(PATIENCE):
        while (names := await worker_names(server)) != ["staying"]:
            assert set(names) <= {"leaving", "staying"}
    assert (await staying.beat()).credit == 1


async def worker_names(server: Served, **fields: object) -> list[str]:
    """Names of the workers on all pages."""
    stub, names, token = WorkerServiceStub(server.channel), [], ""
    while True:
        page = await stub.ListWorkers(pb.ListWorkersRequest(page_token=token, **fields))  # type: ignore[arg-type]
        names += [worker.worker_id for worker in page.workers]
        token = page.next_page_token
        if not token:
            return names


async def test_workers_of_all_replicas_are_listed_in_order(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    for number, server in enumerate((here, there, here, there, here)):
        await hire_at(server, worker_id=f"w{number}")

    for server in (here, there):
        assert await worker_names(server, page_size=2) == ["w0", "w1", "w2", "w3", "w4"]


async def test_workers_of_another_namespace_are_not_listed(hire: Hire, server: Served) -> None:
    await hire(worker_id="here")
    stub = WorkerServiceStub(server.channel)

    error = await refusal(stub.ListWorkers(pb.ListWorkersRequest(namespace="nowhere")))

    assert error.reason == "NAMESPACE_NOT_FOUND"
    assert (await refusal(stub.ListWorkers(pb.ListWorkersRequest(page_size=-1)))).reason == "PAGE_SIZE_INVALID"
    assert (await refusal(stub.ListWorkers(pb.ListWorkersRequest(page_token="x")))).reason == "PAGE_TOKEN_INVALID"


async def test_a_list_of_workers_with_many_handlers_fits_into_messages(sqlite_server: Served) -> None:
    names = tuple(f"{number:064}" for number in range(1000))
    for _ in range(61):
        await UnaryWorker(sqlite_server.channel, names).register()

    assert len(await worker_names(sqlite_server, page_size=100)) == 61


async def test_a_session_that_has_not_called_for_long_must_register_again(server: Served, caller: UnaryWorker) -> None:
    older = update(sessions).values(seen_at=sessions.c.seen_at - CALLER_SEEN)
    await server.app.db.run_tx(lambda tx: tx.execute(older).rowcount)

    assert (await refusal(caller.claim())).reason == "SESSION_NOT_REGISTERED"
    await caller.register()
    assert await caller.claim() == []
