"""Whom hooks go to: names that are hosted, names whose workers are away, names that nobody knows."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.errors import CallFailed
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.errors_pb2 import ERROR_REASON_HANDLER_LIMIT
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at, item, retry, status_of
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.workers import UnaryWorker

DAY = 86_400.0


@pytest.fixture
def frozen(still: Served) -> Triggers:
    """Hooks of a server whose time stands still."""
    return Triggers(still.channel)


async def test_a_name_that_nobody_ever_hosted_waits_a_day_and_then_fails_by_its_policy(
    frozen: Triggers, still: Served
) -> None:
    await frozen.trigger("one", "nobody", retry=retry(2, delay=60))
    await frozen.trigger("young", "nobody", process_at=await frozen.now() + 3600)
    await frozen.advance(DAY - 1)
    await still.app.sweep.once()
    assert (await frozen.get("one")).attempts == 0

    await frozen.advance(1)
    await still.app.sweep.once()
    hook = await frozen.get("one")
    assert (status_of(hook), hook.attempts, hook.failure.name) == ("PENDING", 1, "HOOK_HANDLER_NOT_FOUND")
    assert "nobody" in hook.failure.message
    assert at(hook.next_attempt_at) == await frozen.now() + 60
    assert (await frozen.status("young"), (await frozen.get("young")).attempts) == ("PENDING", 0)
    await frozen.advance(60 + DAY)
    await still.app.sweep.once()

    hook = await frozen.get("one")
    assert (status_of(hook), hook.attempts) == ("FAILED", 2)


async def test_a_time_in_the_past_does_not_make_a_name_unknown_for_longer(frozen: Triggers, still: Served) -> None:
    await frozen.trigger("one", "nobody", process_at=await frozen.now() - 2 * DAY)

    await still.app.sweep.once()

    assert (await frozen.get("one")).attempts == 0


async def test_a_name_whose_workers_are_away_just_waits(frozen: Triggers, still: Served, hire_at: Hire) -> None:
    await (await hire_at(still, hooks=("note",), credit=0)).goodbye()
    await frozen.trigger("one")

    await frozen.advance(30 * DAY)
    await still.app.sweep.once()

    assert (await frozen.status("one"), (await frozen.get("one")).attempts) == ("PENDING", 0)
    assert (await (await hire_at(still, hooks=("note",))).take()).hook.attempt == 1


async def test_a_worker_gets_only_hooks_of_its_namespace_and_names(
    server: Served, triggers: Triggers, hire: Hire
) -> None:
    worker = await hire(hooks=("note",), credit=9)
    await triggers.trigger("other", "ring")
    await triggers.trigger("mine")

    assert (await worker.take()).task.key == "mine"
    await worker.beat()
    assert not worker.has("task")


@pytest.mark.parametrize("name", ["", "-note", "n" * 65])
async def test_a_name_that_cannot_be_is_not_hosted(hire: Hire, name: str) -> None:
    worker = await hire(connect=False, hooks=(name,))
    worker.open()
    await worker.say(pb.WorkerFrame(hello=worker.hello()))

    end = await worker.until_over()

    assert end is not None
    assert end.reason == "INVALID_HOOK_NAME"


async def test_a_namespace_has_so_many_names_and_those_that_it_has_go_on(
    start_server: StartServer, database_url: str, hire_at: Hire
) -> None:
    server = await start_server(database_url, limits={"handlers": 2}, webhooks=True)
    worker, hooks = await hire_at(server, hooks=("note",)), Triggers(server.channel)

    told = [
        await refusal(hooks.put("https://receiver.example.com/", "new")),
        await refusal(UnaryWorker(server.channel, ("new",)).register()),
    ]
    new, known = await hooks.trigger_many(item("one", "new"), item("two", "note"))
    with pytest.raises(CallFailed) as hello:
        await (await hire_at(server, "order", "new", connect=False)).connect()

    assert {(one.code.name, one.reason, one.metadata["limit"]) for one in told} == {
        ("RESOURCE_EXHAUSTED", "HANDLER_LIMIT", "2")
    }
    assert (new.error.reason, hello.value.reason) == (ERROR_REASON_HANDLER_LIMIT, "HANDLER_LIMIT")
    assert (known.hook.hook_id, (await worker.take()).hook.attempt) == ("two", 1)
    assert await hooks.put("https://receiver.example.com/", "note")
    assert await UnaryWorker(server.channel).register()
    assert await Flows(server.channel).create("fine")


async def test_names_that_come_at_once_are_no_more_than_a_namespace_may_have(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(database_url, limits={"handlers": 5})
    hooks = Triggers(server.channel)

    results = await asyncio.gather(*(hooks.trigger_many(item(name=f"n{number}")) for number in range(20)))

    assert sum(result.HasField("hook") for (result,) in results) == 5
