"""DispatcherService.Process, and servers that move nothing without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell_server.config import load
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import Claim
from stepwell_server.engine.spine.committer import Committer
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, item, retry
from tests.support.calls.wakes import HOOK, WORKFLOW, Sidecar, is_due, unserved
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, finish, opening, raised, returned, sleep, suspend
from tests.support.workers.workers import HandWorker, UnaryWorker, grant


@pytest.fixture
def sidecar(external: Served) -> Sidecar:
    """A dispatcher of that server."""
    return Sidecar(external.channel)


@pytest.fixture
def hooks(external: Served) -> Triggers:
    """Hooks of that server."""
    return Triggers(external.channel)


@pytest.fixture
def hire(hire_at: Hire, external: Served) -> Hire:
    """Connects workers to that server."""

    async def at_the_server(*names: str, **options: Any) -> HandWorker:
        return await hire_at(external, *names, **options)

    return at_the_server


# ---- who moves work


async def test_without_a_dispatcher_an_external_server_moves_nothing(
    sidecar: Sidecar, external: Served, hooks: Triggers, hire: Hire
) -> None:
    """Nothing is claimed at birth, and a credit is capacity only."""
    worker = await hire("order", hooks=("note",), credit=5)
    await Flows(external.channel).create("x")
    await hooks.trigger("one")
    await worker.say(grant(1))
    for _ in range(3):
        await worker.beat()
    assert not worker.has("task")

    assert (await sidecar.process()).handed_out == 2
    assert {(await worker.take()).task.key for _ in range(2)} == {"x", "one"}


async def test_a_caller_claims_from_an_external_server_by_itself(external: Served, hooks: Triggers) -> None:
    caller = UnaryWorker(external.channel, (), hooks=("note",))
    await caller.register()
    await hooks.trigger("one")

    (task,) = await caller.claim()

    assert task.task.key == "one"


async def test_timers_of_held_runs_fire_without_a_dispatcher(sidecar: Sidecar, external: Served, hire: Hire) -> None:
    worker = await hire("order")
    await Flows(external.channel).create("x")
    await sidecar.process()
    job = await worker.take()

    await job.report(begin(opening("charge")), sleep("nap", 0.05))

    assert set(await job.resolved()) == {"nap"}


async def test_an_embedded_server_hands_out_on_request_as_well(server: Served, hire_at: Hire) -> None:
    """Two who hand out do not hand out twice."""
    worker = await hire_at(server, hooks=("note",), credit=10)
    triggers, sidecar = Triggers(server.channel), Sidecar(server.channel)
    ids = [f"h{number}" for number in range(10)]

    await asyncio.gather(*(triggers.trigger(one) for one in ids), *(sidecar.process() for _ in range(10)))

    taken = [(await worker.take()).task.key for _ in ids]
    assert sorted(taken) == ids and not worker.has("task")


# ---- how much


async def test_a_pass_hands_out_no_more_than_it_is_asked_to(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=10)
    for number in range(5):
        await hooks.trigger(f"h{number}")

    first = await sidecar.process(2)
    assert (first.handed_out, is_due(first)) == (2, True)
    assert [(await worker.take()).task.key for _ in range(2)] == ["h0", "h1"]  # the oldest

    second = await sidecar.process()
    assert (second.handed_out, is_due(second)) == (3, False)
    third = await sidecar.process()
    assert third.handed_out == 0


async def test_a_pass_hands_out_a_hundred_unless_told_otherwise(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    await hire(hooks=("note",), credit=300)
    for _ in range(3):
        await hooks.trigger_many(*(item() for _ in range(50)))

    assert (await sidecar.process()).handed_out == 100
    assert (await sidecar.process(2_000_000)).handed_out == 50


async def test_a_pass_hands_out_what_its_filter_names(
    sidecar: Sidecar, external: Served, hooks: Triggers, hire: Hire
) -> None:
    worker = await hire("order", hooks=("alpha", "beta"), credit=10)
    await Flows(external.channel).create("x")
    await hooks.trigger("a", name="alpha")
    await hooks.trigger("b", name="beta")

    assert (await sidecar.process(names=["beta"])).handed_out == 1
    assert (await worker.take()).task.key == "b"
    assert (await sidecar.process(kinds=[WORKFLOW])).handed_out == 1
    assert (await worker.take()).task.key == "x"
    left = await sidecar.process(kinds=[HOOK], names=["gamma"])
    assert left.handed_out == 0 and not left.next_wake.HasField("wake_at")


async def test_what_is_not_due_is_not_handed_out(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    await hire(hooks=("note",))
    await hooks.trigger("later", process_at=await hooks.now() + 60)

    answer = await sidecar.process()

    assert answer.handed_out == 0 and not is_due(answer)


async def test_without_room_nothing_is_handed_out_and_it_is_still_due(
    sidecar: Sidecar, hooks: Triggers, hire: Hire
) -> None:
    await hire(hooks=("note",), credit=1)
    for hook_id in ("one", "two"):
        await hooks.trigger(hook_id)
    assert (await sidecar.process()).handed_out == 1

    full = await sidecar.process()

    assert full.handed_out == 0 and is_due(full) and not full.next_wake.unserved


async def test_without_a_worker_the_answer_says_who_is_missing(sidecar: Sidecar, hooks: Triggers) -> None:
    await hooks.trigger("one")

    answer = await sidecar.process(wait=5)

    assert answer.handed_out == 0 and list(unserved(answer.next_wake)) == ["note"]


# ---- steps


async def test_a_run_makes_so_many_steps_and_goes_on_in_a_later_pass(
    sidecar: Sidecar, external: Served, hire: Hire
) -> None:
    worker = await hire("order", credit=5)
    await Flows(external.channel).create("x")

    assert (await sidecar.process(max_steps=1)).handed_out == 1
    job = await worker.take()
    assert job.run.max_steps == 1
    await job.report(begin(opening("a")))
    await job.report(done("a"), suspend(yields=True))
    assert not worker.has("task")
    assert await sidecar.is_due()

    assert (await sidecar.process()).handed_out == 1
    job = await worker.take()
    assert job.run.max_steps == 0 and set(job.steps) == {"a"}
    await job.tell(finish())
    assert await Flows(external.channel).status("x") == "COMPLETE"


async def test_a_run_that_yields_while_it_waits_is_due_at_once(sidecar: Sidecar, external: Served, hire: Hire) -> None:
    worker = await hire("order", credit=5)
    await Flows(external.channel).create("x")
    await sidecar.process(max_steps=1)

    await (await worker.take()).report(sleep("nap", 3600), suspend(yields=True))

    assert await sidecar.is_due()


# ---- waiting


async def test_who_waits_hears_how_many_completed_or_failed(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=3)
    for number in range(3):
        await hooks.trigger(f"h{number}", retry=retry(1))
    passing = asyncio.create_task(sidecar.process(wait=2))
    await (await worker.take()).tell(returned())
    await (await worker.take()).tell(raised())
    await worker.take()  # and nothing becomes of it

    answer = await passing

    assert (answer.handed_out, answer.processed) == (3, 2)


async def test_who_waits_is_answered_when_the_last_has_ended(sidecar: Sidecar, external: Served, hire: Hire) -> None:
    worker = await hire("order", credit=2)
    for instance_id in ("ends", "naps"):
        await Flows(external.channel).create(instance_id)
    passing = asyncio.create_task(sidecar.process(wait=60))
    for _ in range(2):
        job = await worker.take()
        await job.report(*([finish()] if job.task.key == "ends" else [sleep("nap", 3600), suspend()]))

    async with asyncio.timeout(PATIENCE):
        answer = await passing

    assert (answer.handed_out, answer.processed) == (2, 2)


async def test_what_was_lost_with_its_worker_was_not_processed(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",))
    await hooks.trigger("one")
    passing = asyncio.create_task(sidecar.process(wait=60))
    await worker.take()

    await worker.break_off()

    async with asyncio.timeout(PATIENCE):
        answer = await passing
    assert (answer.handed_out, answer.processed) == (1, 0)


async def test_who_does_not_wait_is_answered_at_once(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    await hire(hooks=("note",))
    await hooks.trigger("one")

    answer = await sidecar.process()

    assert (answer.handed_out, answer.processed) == (1, 0)


# ---- many at once


async def test_a_hundred_callers_at_once_have_one_effect(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=50)
    ids = {f"h{number:02}" for number in range(30)}
    await hooks.trigger_many(*(item(one) for one in ids))

    answers = await asyncio.gather(*(sidecar.process() for _ in range(100)))

    assert sum(one.handed_out for one in answers) == 30
    taken = [(await worker.take()).task.key for _ in ids]
    assert sorted(taken) == sorted(ids) and not worker.has("task")


async def test_a_caller_who_goes_away_takes_nothing_along(
    sidecar: Sidecar, external: Served, hooks: Triggers, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar may be killed in the middle of a pass: what it claimed arrives, and the worker is not forgotten."""
    claiming, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(committer: Committer, call: HotCall) -> Any:
        if isinstance(call, Claim):
            claiming.set()
            await go_on.wait()
        return await committer.enqueue(call)

    monkeypatch.setattr(Committer, "submit", slowly)
    worker = await hire(hooks=("note",), credit=2)
    await hooks.trigger("one")
    passing = asyncio.create_task(sidecar.process(wait=60))
    await claiming.wait()
    passing.cancel()
    async with asyncio.timeout(PATIENCE):
        while external.app.metrics.in_flight.labels("unary")._value.get():
            await asyncio.sleep(0.005)
    go_on.set()
    assert (await worker.take()).task.key == "one"

    await hooks.trigger("two")
    assert (await sidecar.process()).handed_out == 1
    assert not external.app.parts.replica.handout.holders._endings


async def test_a_pass_on_one_replica_moves_what_a_worker_of_another_can_take(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    """Rule 14: else, behind a balancer, due work could stand still for ever."""
    here, there = [await start_server(postgres_url, dispatch="external") for _ in range(2)]
    worker = await hire_at(there, "order", hooks=("note",), credit=5)
    await _until_they_hear(here, there)
    await Triggers(here.channel).trigger("one")
    await Flows(here.channel).create("x")

    answer = await Sidecar(here.channel).process(max_steps=7)

    assert answer.handed_out == 0 and not answer.next_wake.unserved
    jobs = [await worker.take() for _ in range(2)]
    assert {job.task.key for job in jobs} == {"one", "x"}
    assert {job.run.max_steps for job in jobs if job.task.key == "x"} == {7}


async def test_a_long_filter_reaches_other_replicas_whole(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url, dispatch="external") for _ in range(2)]
    worker = await hire_at(there, hooks=("note", "other"), credit=5)
    await _until_they_hear(here, there)
    await Triggers(here.channel).trigger("unwanted", name="other")
    await Triggers(here.channel).trigger("wanted")

    await Sidecar(here.channel).process(names=["note", *(f"{number:064}" for number in range(99))])

    assert (await worker.take()).task.key == "wanted"
    await worker.beat()
    assert not worker.has("task")


async def _until_they_hear(*replicas: Served) -> None:
    async with asyncio.timeout(PATIENCE):
        while not all(one.app._hints.working for one in replicas):
            await asyncio.sleep(0.01)


# ---- refusals


async def test_passes_that_cannot_be_are_refused(sidecar: Sidecar, external: Served) -> None:
    assert (await refusal(sidecar.process(-1))).metadata["field"] == "max_tasks"
    assert (await refusal(sidecar.process(max_steps=-1))).metadata["field"] == "max_steps"
    for wait in (-1.0, 60.001):
        error = await refusal(sidecar.process(wait=wait))
        assert (error.code.name, error.metadata["field"]) == ("INVALID_ARGUMENT", "wait")
    assert (await refusal(Sidecar(external.channel, "nowhere").process())).reason == "NAMESPACE_NOT_FOUND"
    many = [f"n{number}" for number in range(101)]
    assert (await refusal(sidecar.process(names=many))).reason == "INVALID_FIELD"


async def test_a_server_may_be_told_to_hand_out_nothing_on_request(start_server: StartServer, sqlite_url: str) -> None:
    assert load(["--no-process"], "stepwell-server").process is False
    served = await start_server(sqlite_url, process=False)
    sidecar = Sidecar(served.channel)

    error = await refusal(sidecar.process())

    assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "PROCESS_DISABLED")
    assert await sidecar.next_wake() is None  # all else is answered
