"""Dispatchers beside real servers: work moves when one of them moves it, and a worker comes when it is needed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepwell import Client, Instance
from tests.support.patience import PATIENCE
from tests.support.servers.commands import Running, start_command, stepwell, stepwell_process
from tests.support.servers.servers import ServerProcess, start_process

PROGRAM = """
import pathlib

from stepwell import App, hook, workflow


@workflow("nap")
async def nap(event, step):
    await step.do("lie down", lambda: None)
    await step.sleep("sleep", event.payload.get("for", "300 ms"))
    return await step.do("get up", lambda: "rested")


@hook("ring")
async def ring(payload):
    pathlib.Path("rung").touch()


app = App(workflows=[nap], hooks=[ring])
"""
POLL = ("--mode", "poll", "--interval", "100 ms")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def external(database_url: str) -> AbstractAsyncContextManager[ServerProcess]:
    return start_process(database_url, "--dispatch", "external")


async def registered(server: ServerProcess, folder: Path) -> None:
    """Make the app's workflow known, by a worker that comes and goes."""
    code, _, err = await stepwell_process("worker", "program", "--idle", "10ms", server=server.listen, cwd=folder)
    assert code == 0, err


async def status(instance: Instance) -> str:
    return str((await instance.status()).status)


@pytest.mark.parametrize("mode", [(), POLL], ids=["stream", "poll"])
async def test_an_external_server_moves_what_a_dispatcher_moves(
    database_url: str, folder: Path, mode: tuple[str, ...]
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(external(database_url))
        client = await stack.enter_async_context(Client(server.listen))
        worker = await stack.enter_async_context(start_command("worker", "program", server=server.listen, cwd=folder))
        await worker.says("serves nap")
        before = await client.workflow("nap").create(params={})
        code, out, _ = await stepwell("wake", "next", "--json", server=server.listen)
        assert code == 0
        answer = json.loads(out)
        assert answer["next_wake"]["wake_at"] <= answer["now"]
        assert await status(before) == "queued"

        sidecar = await stack.enter_async_context(start_command("dispatcher", *mode, server=server.listen, cwd=folder))
        assert await before.result(timeout="20 seconds") == "rested"
        during = await client.workflow("nap").create(params={})
        assert await during.result(timeout="20 seconds") == "rested"

        assert await sidecar.stop(signal.SIGTERM) == 0
        after = await client.workflow("nap").create(params={})
        code, out, _ = await stepwell("wake", "next", server=server.listen)
        assert "now: due since" in out
        assert await status(after) == "queued"


async def test_dispatchers_side_by_side_execute_nothing_twice(postgres_url: str, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(external(postgres_url)) for _ in range(2)]
        for server in servers:
            command = start_command("worker", "program", server=server.listen, cwd=folder)
            await (await stack.enter_async_context(command)).says("serves nap")
        for number, mode in enumerate([(), (), POLL]):
            listen = servers[number % 2].listen
            await stack.enter_async_context(start_command("dispatcher", *mode, server=listen, cwd=folder))
        client = await stack.enter_async_context(Client(servers[0].listen))
        naps = await asyncio.gather(*(client.workflow("nap").create(params={}) for _ in range(50)))

        assert await asyncio.gather(*(nap.result(timeout="40 seconds") for nap in naps)) == ["rested"] * 50
        histories = await asyncio.gather(*(nap.history() for nap in naps))

    assert {entry.attempts for history in histories for entry in history if entry.name != "sleep"} == {1}  # type: ignore[union-attr]


@pytest.mark.parametrize("dispatch", ["embedded", "external"])
async def test_an_app_is_hosted_only_while_it_has_something_to_do(
    database_url: str, folder: Path, dispatch: str
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(start_process(database_url, "--dispatch", dispatch))
        client = await stack.enter_async_context(Client(server.listen))
        await registered(server, folder)
        sidecar = await stack.enter_async_context(hosting(server, folder))
        await sidecar.says("hosts nap")
        nap = await client.workflow("nap").create(params={"for": "2 seconds"})

        assert await nap.result(timeout="30 seconds") == "rested"
        await until_said(sidecar, "leaving", 2)
        assert len([line for line in sidecar.lines if "hosting" in line]) == 2  # none while it slept
        assert await sidecar.stop() == 0


async def test_a_hook_that_becomes_due_while_nobody_is_there_is_executed(database_url: str, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(start_process(database_url))
        client = await stack.enter_async_context(Client(server.listen))
        await registered(server, folder)
        sidecar = await stack.enter_async_context(hosting(server, folder))
        await sidecar.says("hosts nap, ring (hook) while that has no other worker")
        await client.hook("ring").trigger({}, process_at=datetime.now(UTC) + timedelta(seconds=1))

        await sidecar.says("hosting")
        await sidecar.says("leaving")

        assert (folder / "rung").exists()


def hosting(server: ServerProcess, folder: Path) -> AbstractAsyncContextManager[Running]:
    arguments = ("dispatcher", "--app", "program:app", "--idle", "300 ms")
    return start_command(*arguments, server=server.listen, cwd=folder)


async def until_said(running: Running, text: str, times: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len([line for line in running.lines if text in line]) < times:
            await asyncio.sleep(0.02)


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime moves the clock of a process")
@pytest.mark.parametrize("skew", ["+10m", "-10m"])
@pytest.mark.parametrize("mode", [(), POLL], ids=["stream", "poll"])
async def test_a_dispatcher_whose_clock_is_wrong_is_not_late(
    sqlite_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, skew: str, mode: tuple[str, ...]
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(external(sqlite_url))
        client = await stack.enter_async_context(Client(server.listen))
        worker = await stack.enter_async_context(start_command("worker", "program", server=server.listen, cwd=folder))
        await worker.says("serves nap")
        with monkeypatch.context() as skewed:
            for name, value in skewed_by(skew).items():
                skewed.setenv(name, value)
            command = start_command("dispatcher", *mode, server=server.listen, cwd=folder)
            sidecar = await stack.enter_async_context(command)

        await sidecar.says("has what is due handed out")
        nap = await client.workflow("nap").create(params={"for": "1 second"})
        assert await nap.result(timeout="20 seconds") == "rested"
        after = json.loads((await stepwell("wake", "next", "--json", server=server.listen))[1])
        assert "wake_at" not in after["next_wake"]


def skewed_by(skew: str) -> dict[str, str]:
    """What faketime sets for the program that it starts; it stays in between, which is no good for signals."""
    printed = subprocess.run(("faketime", "-f", skew, "env"), capture_output=True, text=True, check=True).stdout
    variables = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    chosen = {"LD_PRELOAD": variables["LD_PRELOAD"], "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    clock = (sys.executable, "-c", "import time; print(time.time())")
    told = subprocess.run(clock, env=os.environ | chosen, capture_output=True, text=True, check=True).stdout
    assert abs(float(told) - time.time()) > 500
    return chosen


async def test_wake_shows_what_waits_and_for_whom(database_url: str, folder: Path) -> None:
    async with start_process(database_url) as server, Client(server.listen) as client:
        await registered(server, folder)
        _, out, _ = await stepwell("wake", "next", server=server.listen)
        assert "none: nothing waits" in out

        async with start_command("wake", "stream", server=server.listen, cwd=folder) as stream:
            await stream.says("none: nothing waits")
            await client.workflow("nap").create(params={"for": "1 hour"})
            await stream.says("; no worker for workflow nap")
            async with start_command("worker", "program", server=server.listen, cwd=folder):
                await stream.says("in 59 min ")

        _, out, _ = await stepwell("wake", "next", "--name", "other", server=server.listen)
        assert "none: nothing waits" in out
