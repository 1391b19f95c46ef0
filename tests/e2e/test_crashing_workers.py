"""Workers whose processes die in the middle of a step, again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepwell import Client, StepEntry, WorkflowFailed
from tests.support.commands import start_command
from tests.support.servers import start_process

QUICK_LEASES = ("--leases.lease", "2", "--leases.ack-window", "1", "--leases.reconnect-grace", "0.2")
PROGRAM = '''
import asyncio
import os

from stepwell import App, workflow


def poison():
    with open("executions", "a") as notes:
        notes.write("x")
    os._exit(1)


async def poison_on_the_loop():
    poison()


@workflow("first")
async def first(event, step):
    """Its first step kills the process before anything else can happen."""
    await step.do("poison", poison if event.payload["in_thread"] else poison_on_the_loop, retries={"limit": 2})


app = App(workflows=[first])
'''


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [True, False], ids=["in a thread", "on the loop"])
async def test_a_first_step_that_kills_its_worker_at_once_ends(
    database_url: str, tmp_path: Path, in_thread: bool
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    executions = tmp_path / "executions"

    async with start_process(database_url, *QUICK_LEASES) as server, Client(server.listen) as client:
        async with start_command("worker", "program:app", server=server.listen, cwd=tmp_path) as worker:
            await worker.says("serves first")
            poisoned = await client.workflow("first").create(params={"in_thread": in_thread})
            await asyncio.wait_for(worker.process.wait(), 20)
        result = asyncio.ensure_future(poisoned.result(timeout="40 seconds"))
        while not result.done() and len(executions.read_text()) <= 4:
            async with start_command("worker", "program:app", server=server.listen, cwd=tmp_path) as worker:
                ended = asyncio.ensure_future(worker.process.wait())
                await asyncio.wait([ended, result], timeout=20, return_when=asyncio.FIRST_COMPLETED)

        assert len(executions.read_text()) == 3
        with pytest.raises(WorkflowFailed, match="STEP_MAX_ATTEMPTS_EXCEEDED"):
            await result
        [step] = await poisoned.history()
        assert isinstance(step, StepEntry) and step.attempts == 3
