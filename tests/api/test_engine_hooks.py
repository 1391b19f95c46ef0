"""Engine hooks: what happens to instances is stored as hooks, in the same transaction, where somebody wants to know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stepwell.v1 import frames_pb2 as pb
from stepwell_server.storage.database.failpoints import BEFORE_COMMIT
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at, until_known
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import done, fail, failed, finish, policy, returned, sleep, suspend, wait_for
from tests.support.workers.workers import HandWorker, grant

EVENTS = ("workflow.enqueued", "workflow.completed", "workflow.errored", "workflow.terminated")


@pytest.fixture
def frozen(still: Served) -> Triggers:
    """Hooks of a server whose time stands still."""
    return Triggers(still.channel)


@pytest.fixture
def flows(still: Served) -> Flows:
    """Instances of the workflow "order", where time stands still."""
    return Flows(still.channel)


@pytest.fixture
async def worker(still: Served, hire_at: Hire) -> HandWorker:
    """A worker of "order" where somebody wants to know everything: hooks are registered, and nobody takes them."""
    listener = await hire_at(still, "other", hooks=EVENTS, credit=0)
    await listener.goodbye()
    await until_known(still, *EVENTS)
    return await hire_at(still, credit=9)


async def told(triggers: Triggers, name: str) -> list[dict[str, Any]]:
    """What hooks of that name tell, the oldest first, with their times in seconds from now."""
    now = await triggers.now()
    page = await triggers.list(name=name)
    found = []
    for shown in reversed(page.hooks):
        hook = await triggers.get(shown.hook_id)
        found.append(json.loads(hook.payload.json) | {"in": round(at(hook.next_attempt_at) - now, 6)})
    return found


async def reasons(triggers: Triggers) -> list[tuple[str, int, float]]:
    """Why the instance was enqueued, in which run, and for when."""
    return [(one["reason"], one["run_number"], one["in"]) for one in await told(triggers, "workflow.enqueued")]


async def wake(triggers: Triggers, by: float, worker: HandWorker, *frames: pb.WorkerFrame) -> None:
    """Let a run go on that sleeps for so long: the clock waits for it, so both happen at once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(triggers.advance(by))
        await (await worker.take()).report(*frames)


async def test_an_instance_is_told_of_from_its_creation_to_its_end(
    frozen: Triggers, flows: Flows, worker: HandWorker
) -> None:
    await flows.create("one")
    await (await worker.take()).tell(finish('"output"'))

    (enqueued,) = await told(frozen, "workflow.enqueued")
    (completed,) = await told(frozen, "workflow.completed")

    assert enqueued["run_at"] == enqueued["at"]
    assert (enqueued["reason"], enqueued["in"]) == ("create", 0)
    assert {name: completed[name] for name in ("event", "namespace", "workflow", "instance_id", "run_number")} == {
        "event": "workflow.completed",
        "namespace": "default",
        "workflow": "order",
        "instance_id": "one",
        "run_number": 0,
    }
    assert not {"reason", "run_at", "failure"} & completed.keys()
    assert await told(frozen, "workflow.errored") == await told(frozen, "workflow.terminated") == []


async def test_every_reason_to_run_is_told(frozen: Triggers, flows: Flows, worker: HandWorker) -> None:
    await flows.create("one")
    await (await worker.take()).report(sleep("nap", 60), suspend())
    await wake(frozen, 60, worker, failed("a", policy=policy(3, delay=30)), suspend())
    await wake(frozen, 30, worker, done("a", attempt=2), wait_for("w", "go", 3600), suspend())
    await flows.event("one", "go")
    await (await worker.take()).report(wait_for("x", "never", 3600), suspend())
    await flows.manage("Pause", "one")
    await flows.manage("Resume", "one")
    await worker.take()
    await flows.manage("Restart", "one")

    assert await reasons(frozen) == [
        ("create", 0, -90),
        ("wake", 0, -30),
        ("retry", 0, 0),
        ("wake", 0, 3600),
        ("event", 0, 0),
        ("wake", 0, 3600),
        ("resume", 0, 0),
        ("create", 1, 0),
    ]


async def test_a_sleep_is_told_of_at_its_end_and_not_before(
    frozen: Triggers, flows: Flows, worker: HandWorker, still: Served, hire_at: Hire
) -> None:
    await flows.create("one")
    listener = await hire_at(still, "other", hooks=EVENTS, credit=9)
    await (await listener.take()).tell(returned())
    await (await worker.take()).report(sleep("nap", 3600), suspend())
    await worker.goodbye()

    await frozen.advance(3599)
    await listener.beat()
    assert not listener.has("task")
    await frozen.advance(1)

    assert json.loads((await listener.take()).hook.payload.json)["reason"] == "wake"


async def test_what_wakes_nobody_is_not_told(frozen: Triggers, flows: Flows, worker: HandWorker) -> None:
    await flows.create("one")
    job = await worker.take()
    await flows.event("one", "early")
    await job.report(done("a"), wait_for("w", "go", 3600), suspend())
    before = await reasons(frozen)

    await flows.event("one", "other")
    await flows.manage("Pause", "one")
    await flows.event("one", "go")

    assert await reasons(frozen) == before


async def test_an_instance_that_errs_is_told_of_with_its_failure(
    frozen: Triggers, flows: Flows, worker: HandWorker
) -> None:
    await flows.create("one")
    await (await worker.take()).tell(fail("Boom", "it broke"))

    (errored,) = await told(frozen, "workflow.errored")

    assert errored["failure"] == {"name": "Boom", "message": "it broke"}
    assert await told(frozen, "workflow.completed") == []


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_instance_that_is_terminated_is_told_of_once(
    frozen: Triggers, flows: Flows, worker: HandWorker, is_held: bool
) -> None:
    await flows.create("one")
    job = await worker.take()
    if not is_held:
        await job.report(sleep("nap", 60), suspend())

    await flows.manage("Terminate", "one", request_id="r")
    await flows.manage("Terminate", "one", request_id="r")
    assert (await refusal(flows.manage("Terminate", "one"))).reason == "INSTANCE_TERMINAL"

    (terminated,) = await told(frozen, "workflow.terminated")
    assert (terminated["instance_id"], terminated["run_number"]) == ("one", 0)
    await frozen.advance(60)
    assert await flows.status("one") == "TERMINATED"  # the hook of its sleep has come due, and changes nothing


async def test_a_batch_tells_of_each_that_was_created(frozen: Triggers, flows: Flows, worker: HandWorker) -> None:
    await flows.create_many(*(flows.item(one) for one in ("a", "b", "a", "c")))

    assert sorted(one["instance_id"] for one in await told(frozen, "workflow.enqueued")) == ["a", "b", "c"]


async def test_each_hook_has_an_id_and_a_key_of_its_own(frozen: Triggers, flows: Flows, worker: HandWorker) -> None:
    for number in range(5):
        await flows.create(f"i{number}")

    hooks = (await frozen.list()).hooks

    assert len({one.hook_id for one in hooks}) == len({one.idempotency_key for one in hooks}) == 5


async def test_nothing_is_written_where_nobody_wants_to_know(
    still: Served, frozen: Triggers, flows: Flows, hire_at: Hire
) -> None:
    worker = await hire_at(still, hooks=("workflow.errored",), credit=9)
    await until_known(still, "workflow.errored")
    await flows.create("one")
    await (await worker.take()).report(sleep("nap", 60), suspend())
    await wake(frozen, 60, worker, finish())

    assert await frozen.ids() == []


async def test_a_hook_is_told_if_and_only_if_its_cause_was_committed(
    still: Served, frozen: Triggers, flows: Flows, worker: HandWorker
) -> None:
    def stumble(point: str) -> None:
        if point == f"{BEFORE_COMMIT}/group":
            raise OSError("out of paper")

    with still.app.db.failpoints.install(stumble):
        await refusal(flows.create("lost"))
    await flows.create("kept")

    assert [one["instance_id"] for one in await told(frozen, "workflow.enqueued")] == ["kept"]


async def test_whoever_is_told_first_is_told_from_then_on(
    still: Served, frozen: Triggers, flows: Flows, hire_at: Hire
) -> None:
    await hire_at(still, credit=0)
    await flows.create("before")
    listener = await hire_at(still, "other", hooks=("workflow.enqueued",), credit=0)
    await until_known(still, "workflow.enqueued")
    await flows.create("after")
    await listener.say(grant(2))

    job = await listener.take()

    assert json.loads(job.hook.payload.json)["instance_id"] == "after"
    await listener.beat(job)
    assert not listener.has("task")


async def test_another_replica_tells_as_well(start_server: StartServer, hire_at: Hire, postgres_url: str) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    await hire_at(here, credit=0)
    listener = await hire_at(here, "other", hooks=("workflow.enqueued",), credit=1)
    await until_known(there, "workflow.enqueued")

    await Flows(there.channel).create("one")

    assert json.loads((await listener.take()).hook.payload.json)["instance_id"] == "one"
