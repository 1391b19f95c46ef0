"""DispatcherService.GetNextWake: when something can be claimed next, and what nobody is there to claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import update

from stepwell.v1 import namespaces_pb2
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.times import SECOND
from stepwell_server.storage.schema import sessions
from stepwell_server.storage.spine import limits
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at, retry
from tests.support.calls.wakes import HOOK, WORKFLOW, Sidecar
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import finish, raised, returned, sleep, suspend, wait_for
from tests.support.workers.workers import HandWorker, UnaryWorker

NOTE = Handler("default", TaskKind.HOOK, "note")


@pytest.fixture
async def still(start_server: StartServer, database_url: str) -> Served:
    """A server whose time stands still, and that moves nothing by itself."""
    return await start_server(database_url, dispatch="external", virtual_clock=True)


@pytest.fixture
def sidecar(still: Served) -> Sidecar:
    """A dispatcher of that server."""
    return Sidecar(still.channel)


@pytest.fixture
def hooks(still: Served) -> Triggers:
    """Hooks of that server."""
    return Triggers(still.channel)


@pytest.fixture
def hire(hire_at: Hire, still: Served) -> Callable[..., Awaitable[HandWorker]]:
    """Connects workers to that server."""

    async def at_the_server(*names: str, **options: object) -> HandWorker:
        return await hire_at(still, *names, **options)

    return at_the_server


# ---- when


async def test_with_nothing_pending_there_is_no_next_wake(sidecar: Sidecar, hooks: Triggers) -> None:
    answer = await sidecar.ask()

    assert not answer.next_wake.HasField("wake_at")
    assert at(answer.now) == await hooks.now()
    assert len(answer.next_wake.replica_id) == 32


async def test_what_has_no_time_is_due_now_whatever_else_waits(sidecar: Sidecar, hooks: Triggers) -> None:
    now = await hooks.now()
    await hooks.trigger("later", process_at=now + 60)
    await hooks.trigger("now")

    assert await sidecar.next_wake() == now
    assert await sidecar.is_due()


async def test_the_next_wake_is_the_earliest_of_all(sidecar: Sidecar, hooks: Triggers) -> None:
    now = await hooks.now()
    await hooks.trigger("far", process_at=now + 60)
    await hooks.trigger("near", process_at=now + 5, name="other")

    assert await sidecar.next_wake() == now + 5
    assert not await sidecar.is_due()


async def test_another_namespaces_hooks_do_not_count(sidecar: Sidecar, still: Served) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name="elsewhere")
    await NamespaceServiceStub(still.channel).CreateNamespace(request)
    await Triggers(still.channel, "elsewhere").trigger("one")

    assert await sidecar.next_wake() is None
    assert await Sidecar(still.channel, "elsewhere").is_due()


async def test_a_filter_says_which_kinds_and_names_count(
    sidecar: Sidecar, still: Served, hooks: Triggers, hire: Hire
) -> None:
    await hire("order", credit=0)
    now = await hooks.now()
    await Flows(still.channel).create("x")
    await hooks.trigger("a", name="alpha", process_at=now + 10)
    await hooks.trigger("b", name="beta", process_at=now + 20)

    assert await sidecar.next_wake(kinds=[WORKFLOW]) == now
    assert await sidecar.next_wake(kinds=[HOOK]) == now + 10
    assert await sidecar.next_wake(names=["beta", "gamma"]) == now + 20
    assert await sidecar.next_wake(kinds=[WORKFLOW], names=["beta"]) is None
    assert await sidecar.next_wake(names=["order"]) == now


async def test_hooks_that_have_ended_do_not_count(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=3)
    for hook_id in ("completes", "fails"):
        await hooks.trigger(hook_id, retry=retry(1))
    await hooks.trigger("cancelled", process_at=await hooks.now() + 1)
    await hooks.manage("Cancel", "cancelled")
    await sidecar.process()
    await (await worker.take()).tell(returned())
    await (await worker.take()).tell(raised())

    assert await sidecar.next_wake() is None


async def test_a_hook_that_is_tried_again_counts_by_the_time_of_that(
    sidecar: Sidecar, hooks: Triggers, hire: Hire
) -> None:
    worker = await hire(hooks=("note",))
    await hooks.trigger("one", retry=retry(2, delay=7))
    await sidecar.process()
    await (await worker.take()).tell(raised())

    assert await sidecar.next_wake() == await hooks.now() + 7

    await hooks.manage("Retry", "one")
    assert await sidecar.is_due()


async def test_held_work_counts_by_the_end_of_its_lease(sidecar: Sidecar, hooks: Triggers, hire: Hire) -> None:
    """Else the hooks of a worker that crashed would wait for an unrelated wake."""
    worker = await hire(hooks=("note",))
    await hooks.trigger("one")
    await sidecar.process()

    answer = await sidecar.ask()
    assert 0 < at(answer.next_wake.wake_at) - at(answer.now) <= 10  # to be acknowledged by then

    job = await worker.take()
    await worker.beat(job)
    answer = await sidecar.ask()
    assert 10 < at(answer.next_wake.wake_at) - at(answer.now) <= 30


async def test_runs_count_by_what_they_wait_for(sidecar: Sidecar, still: Served, hooks: Triggers, hire: Hire) -> None:
    worker, flows = await hire("order", credit=2), Flows(still.channel)
    now = await hooks.now()
    await flows.create("sleeps")
    await sidecar.process()
    await (await worker.take()).report(sleep("nap", 30), suspend())
    assert await sidecar.next_wake() == now + 30

    await flows.create("waits")
    await sidecar.process()
    await (await worker.take()).report(wait_for("go", "go", timeout=20), suspend())
    assert await sidecar.next_wake() == now + 20

    await flows.event("waits", "go")
    assert await sidecar.next_wake() == now


async def test_what_is_paused_or_ended_does_not_count(sidecar: Sidecar, still: Served, hire: Hire) -> None:
    await hire("order", credit=0)
    flows = Flows(still.channel)
    await flows.create("x")
    await flows.manage("Pause", "x")
    assert await sidecar.next_wake() is None

    await flows.manage("Resume", "x")
    assert await sidecar.is_due()

    await flows.manage("Terminate", "x")
    assert await sidecar.next_wake() is None

    await flows.manage("Restart", "x")
    assert await sidecar.is_due()


async def test_a_full_handler_counts_by_the_end_of_a_lease_in_it(
    sidecar: Sidecar, still: Served, hooks: Triggers, hire: Hire
) -> None:
    """Rule 14: else every dispatcher would call Process in vain until a place is free."""
    worker = await hire(hooks=("note",), credit=2)
    await hooks.trigger("first")
    await hooks.trigger("second")
    await still.app.db.run_tx(lambda tx: limits.limit(tx, NOTE, concurrency=1))
    assert (await sidecar.process()).handed_out == 1

    answer = await sidecar.ask()
    assert 0 < at(answer.next_wake.wake_at) - at(answer.now) <= 10

    await (await worker.take()).tell(returned())
    assert await sidecar.is_due()


async def test_a_paused_handler_does_not_count_at_all(sidecar: Sidecar, still: Served, hooks: Triggers) -> None:
    await hooks.trigger("one")
    await still.app.db.run_tx(lambda tx: limits.limit(tx, NOTE, concurrency=None, is_paused=True))

    assert await sidecar.next_wake() is None


async def test_an_answer_is_what_the_database_says_after_all_that_was_acknowledged(
    sidecar: Sidecar, hooks: Triggers, hire: Hire
) -> None:
    """Neither later nor earlier, although other questions are under way all the time."""
    worker = await hire(hooks=("note",), credit=100)
    for number in range(20):
        await hooks.trigger(f"h{number}")
        assert await sidecar.is_due()
        await sidecar.process()
        assert not await sidecar.is_due()
        await (await worker.take()).tell(returned())
        assert await sidecar.next_wake() is None


# ---- for whom


async def test_due_work_without_a_worker_is_reported_apart_with_its_age(
    sidecar: Sidecar, hooks: Triggers, hire: Hire
) -> None:
    since = await hooks.now()
    await hooks.trigger("one")
    await hooks.advance(5)
    await hooks.trigger("two")
    await hooks.trigger("later", name="another", process_at=since + 60)

    assert await sidecar.unserved() == {"note": since}
    assert await sidecar.is_due()

    worker = await hire(hooks=("note",), credit=0)
    assert await sidecar.unserved() == {}

    await worker.goodbye()
    assert await sidecar.unserved() == {"note": since}


async def test_the_oldest_unserved_comes_first_and_a_filter_holds_for_it(sidecar: Sidecar, hooks: Triggers) -> None:
    await hooks.trigger("b", name="beta")
    await hooks.advance(1)
    await hooks.trigger("a", name="alpha")

    assert list(await sidecar.unserved()) == ["beta", "alpha"]
    assert list(await sidecar.unserved(names=["alpha"])) == ["alpha"]
    (one,) = (await sidecar.ask(names=["alpha"])).next_wake.unserved
    assert (one.kind, one.name) == (HOOK, "alpha")


async def test_a_workflow_whose_workers_are_away_is_unserved(sidecar: Sidecar, still: Served, hire: Hire) -> None:
    """It is what wakes a service that was scaled to zero."""
    worker = await hire("order", credit=0)
    await Flows(still.channel).create("x")
    assert await sidecar.unserved() == {}

    await worker.break_off()

    while not (missing := await sidecar.unserved()):
        pass
    assert list(missing) == ["order"]


async def test_who_calls_is_at_work_for_a_minute_after_its_last_call(
    sidecar: Sidecar, still: Served, hooks: Triggers
) -> None:
    """A function that is started for each wake says no goodbye."""
    await hooks.trigger("one")
    caller = UnaryWorker(still.channel, (), hooks=("note",))
    await caller.register()
    assert await sidecar.unserved() == {}

    old = update(sessions).values(seen_at=sessions.c.seen_at - 61 * SECOND)
    await still.app.db.run_tx(lambda tx: tx.execute(old) and None)
    assert list(await sidecar.unserved()) == ["note"]

    assert len(await caller.claim()) == 1


async def test_ended_runs_leave_nothing_behind(sidecar: Sidecar, still: Served, hire: Hire) -> None:
    worker, flows = await hire("order"), Flows(still.channel)
    await flows.create("x")
    await sidecar.process()
    await (await worker.take()).tell(finish())

    answer = await sidecar.ask()
    assert not answer.next_wake.HasField("wake_at") and not answer.next_wake.unserved


# ---- refusals


async def test_questions_that_cannot_be_answered_are_refused(sidecar: Sidecar, still: Served) -> None:
    cases = {
        "NAMESPACE_NOT_FOUND": Sidecar(still.channel, "nowhere").ask(),
        "INVALID_FIELD": sidecar.ask(names=[f"n{number}" for number in range(101)]),
    }
    assert {(await refusal(call)).reason for call in cases.values()} == set(cases)

    for names in (["n" * 65], ["näme"]):
        assert (await refusal(sidecar.ask(names=names))).reason == "INVALID_FIELD"
    assert await sidecar.next_wake(names=[f"n{number}" for number in range(100)]) is None
