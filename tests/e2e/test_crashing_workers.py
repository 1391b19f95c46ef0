"""Workers whose processes die in the middle of a step, again and again, or take longer than a lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepwell import Client, EventEntry, StepEntry, WorkflowFailed
from tests.support.servers.commands import start_command
from tests.support.servers.servers import start_process

QUICK_LEASES = ("--leases.lease", "2", "--leases.ack-window", "1", "--leases.reconnect-grace", "0.2")
EXECUTIONS = 3
PROGRAM = """
import asyncio
import os
import time

from stepwell import App, WorkflowEntrypoint, workflow


def note():
    with open("executions", "a") as notes:
        notes.write("x")


def poison():
    note()
    os._exit(1)


async def poison_on_the_loop():
    poison()


async def quick_steps(step):
    number = 0
    while True:
        await step.do(f"quick {number}", lambda: None)
        number += 1


@workflow("poisoned")
async def poisoned(event, step):
    where = event.payload["where"]
    if where == "after another":
        await step.do("before", lambda: None)
    body = poison_on_the_loop if where == "on the loop" else poison
    await asyncio.gather(
        step.do("poison", body, retries={"limit": 2}),
        *([quick_steps(step)] if where == "beside others" else []),
    )


@workflow("long")
async def long(event, step):
    def body():
        note()
        time.sleep(event.payload["seconds"])

    await step.do("work", body)


def die_the_first_time():
    note()
    if len(open("executions").read()) == 1:
        os._exit(1)


@workflow("child")
async def child(event, step):
    greeting = await step.wait_for_event("greeting", type="greeting")
    return greeting.payload


class Parent(WorkflowEntrypoint):
    name = "parent"

    async def run(self, event, step):
        async def begin():
            children = self.workflow(child)
            named = await children.create(id=f"child-{event.instance_id}", params={"parent": event.instance_id})
            unnamed = await children.create(params={"parent": event.instance_id})
            await named.send_event("greeting", "hello")
            die_the_first_time()
            return [named.id, unnamed.id]

        children = await step.do("trigger child workflow", begin)
        await step.do("continue", lambda: {"ok": True})
        return children


app = App(workflows=[poisoned, long, child, Parent])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in a thread", "on the loop", "after another", "beside others"])
async def test_a_step_that_kills_its_worker_is_executed_as_often_as_it_may_be_and_then_ends(
    database_url: str, folder: Path, where: str
) -> None:
    executions = folder / "executions"
    async with start_process(database_url, *QUICK_LEASES) as server, Client(server.listen) as client:
        async with start_command("worker", "program:app", server=server.listen, cwd=folder) as worker:
            await worker.says("serves poisoned")
            poisoned = await client.workflow("poisoned").create(params={"where": where})
            await asyncio.wait_for(worker.process.wait(), 20)
        result = asyncio.ensure_future(poisoned.result(timeout="1 minute"))
        while not result.done() and len(executions.read_text()) <= EXECUTIONS:
            async with start_command("worker", "program:app", server=server.listen, cwd=folder) as worker:
                ended = asyncio.ensure_future(worker.process.wait())
                await asyncio.wait([ended, result], timeout=30, return_when=asyncio.FIRST_COMPLETED)

        assert len(executions.read_text()) == EXECUTIONS
        with pytest.raises(WorkflowFailed, match="STEP_MAX_ATTEMPTS_EXCEEDED"):
            await result
        [step] = [one for one in await poisoned.history() if isinstance(one, StepEntry) and one.name == "poison"]
        assert step.attempts == EXECUTIONS


@pytest.mark.slow
async def test_a_step_that_takes_longer_than_a_lease_is_executed_once(sqlite_url: str, folder: Path) -> None:
    """Behaviour 201."""
    async with (
        start_process(sqlite_url, "--leases.lease", "2") as server,
        Client(server.listen) as client,
        start_command("worker", "program:app", server=server.listen, cwd=folder) as first,
        start_command("worker", "program:app", server=server.listen, cwd=folder) as second,
    ):
        for worker in (first, second):
            await worker.says("serves poisoned, long, child, parent")
        long = await client.workflow("long").create(params={"seconds": 5})
        await long.result(timeout="30 seconds")
        [step] = await long.history()

    assert isinstance(step, StepEntry) and step.attempts == 1
    assert (folder / "executions").read_text() == "x"


@pytest.mark.slow
async def test_a_parent_whose_worker_dies_after_the_creates_has_one_child_of_each(
    database_url: str, folder: Path
) -> None:
    async with start_process(database_url, *QUICK_LEASES) as server, Client(server.listen) as client:
        async with start_command("worker", "program:app", server=server.listen, cwd=folder) as worker:
            await worker.says("serves")
            parent = await client.workflow("parent").create(id="p")
            await asyncio.wait_for(worker.process.wait(), 20)
        async with start_command("worker", "program:app", server=server.listen, cwd=folder):
            named, unnamed = await parent.result(timeout="30 seconds")
        children = [child.id async for child in client.workflow("child").list()]
        history = await (await client.workflow("child").get(named)).history()

    assert named == "child-p" and sorted(children) == sorted([named, unnamed])
    assert sum(isinstance(one, EventEntry) for one in history) == 1
    assert (folder / "executions").read_text() == "xx"
