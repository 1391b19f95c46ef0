"""Worker processes that are told to stop while a function in them catches everything, also its cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepwell import Client
from tests.support.patience import PATIENCE
from tests.support.servers.commands import start_command
from tests.support.servers.servers import start_process

PROGRAM = """
import asyncio
import pathlib

from stepwell import App, workflow


async def until_told():
    pathlib.Path("begun").touch()
    while not pathlib.Path("go on").exists():
        await asyncio.sleep(0.01)
    return "done"


async def in_a_loop(body):
    while True:
        try:
            return await body()
        except:
            pass


@workflow("once")
async def once(event, step):
    try:
        return await step.do("work", until_told)
    except:
        return "caught"


@workflow("loop")
async def loop(event, step):
    return await in_a_loop(lambda: step.do("work", until_told))


@workflow("branches")
async def branches(event, step):
    async def branch():
        return await asyncio.gather(in_a_loop(lambda: step.do("work", until_told)))

    [[done]] = await asyncio.gather(branch())
    return done


@workflow("body")
async def body(event, step):
    return await step.do("work", lambda: in_a_loop(until_told))


@workflow("no-steps")
async def no_steps(event, step):
    return await in_a_loop(until_told)


app = App(workflows=[once, loop, branches, body, no_steps])
"""
GOES_ON = "workflow_goes_on: it catches its cancellation"
NO_END = "functions_do_not_end count=1: they catch their cancellation"


@pytest.mark.parametrize(
    ("name", "warnings"),
    [("once", []), ("loop", [GOES_ON]), ("branches", [GOES_ON]), ("body", [NO_END]), ("no-steps", [NO_END])],
)
async def test_a_worker_ends_and_the_run_goes_on_elsewhere_whatever_a_function_catches(
    sqlite_url: str, tmp_path: Path, name: str, warnings: list[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    async with start_process(sqlite_url) as server, Client(server.listen) as client:
        async with start_command("worker", "program", "--grace", "0s", server=server.listen, cwd=tmp_path) as worker:
            await worker.says("serves")
            instance = await client.workflow(name).create()
            async with asyncio.timeout(PATIENCE):
                while not (tmp_path / "begun").exists():
                    await asyncio.sleep(0.01)
            assert await worker.stop() == 0

        said = worker.lines[2:]  # after that it serves, and that it stops
        assert len(said) == len(warnings) and all(warning in said[0] for warning in warnings), said
        (tmp_path / "go on").touch()
        async with start_command("worker", "program", server=server.listen, cwd=tmp_path):
            assert await instance.result(timeout="45 seconds") == "done"
