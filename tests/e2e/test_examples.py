"""Examples do what they say."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from stepwell import Client, StepEntry
from stepwell_server import config
from tests.support.patience import PATIENCE
from tests.support.servers.commands import Running, start_command, start_program, stepwell_process
from tests.support.servers.servers import start_process

ROOT = Path(__file__).parents[2]
QUICK_LEASES = ("--leases.lease", "2", "--leases.ack-window", "1", "--leases.reconnect-grace", "0.5")


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_namespaces_example_runs_twice(sqlite_url: str) -> None:
    async with start_process(sqlite_url) as server:
        first = await run(sys.executable, "examples/namespaces/main.py", server.listen)
        second = await run(sys.executable, "examples/namespaces/main.py", server.listen)

    assert "refused: NAMESPACE_ALREADY_EXISTS" in first
    assert first.count("made by an example") == 1
    assert second.count("made by an example") == 2


async def test_the_orders_example_runs_twice(sqlite_url: str) -> None:
    async with start_process(sqlite_url) as server:
        for _ in range(2):
            printed = await run(sys.executable, "examples/orders/main.py", server.listen)
            assert printed == "{'sku': 7, 'config': {'enabled': True}, 'approved': True} complete\n"


async def test_the_receipts_example_runs_twice(sqlite_url: str) -> None:
    async with start_process(sqlite_url) as server:
        for _ in range(2):
            assert (await run(sys.executable, "examples/receipts/main.py", server.listen)).splitlines() == [
                "shipped the order",
                "sent a receipt of 4200 cents",
                "refused: operation 0, INSTANCE_ID_ALREADY_EXISTS",
                "1 receipt",
            ]


@pytest.mark.slow
async def test_a_workflow_survives_kill_9_of_worker_and_server(database_url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(start_process(database_url, *QUICK_LEASES))
        client = await stack.enter_async_context(Client(server.listen))
        worker = await stack.enter_async_context(survivors(server.listen))
        await worker.says("serves survivor")
        params = json.dumps({"file": str(notes), "parts": 6, "seconds": 0.4})
        create = ("workflow", "create", "survivor", "--id", "one", "--params", params, "--wait", "1 minute")
        waiting = await stack.enter_async_context(start_command(*create, server=server.listen, cwd=tmp_path))

        await written(notes, "part 1 begins")
        await worker.kill()
        interrupted = [lines_of(notes)[-1]]
        await stack.enter_async_context(survivors(server.listen))

        await written(notes, "part 4 begins")
        server.kill()
        interrupted.append(lines_of(notes)[-1])
        await server.process.wait()
        await stack.enter_async_context(start_process(database_url, *QUICK_LEASES, listen=server.listen))

        survivor = await client.workflow("survivor").get("one")
        assert await survivor.result(timeout="40 seconds") == [0, 1, 4, 9, 16, 25]
        assert await asyncio.wait_for(waiting.process.wait(), 20) == 0
        steps = {step.name: step.attempts for step in await survivor.history() if isinstance(step, StepEntry)}

    begun = Counter(line.removesuffix(" begins") for line in lines_of(notes) if line.endswith(" begins"))
    again = {part for part, times in begun.items() if times > 1}
    assert again <= {line.removesuffix(" begins").removesuffix(" is done") for line in interrupted}
    assert max(begun.values()) <= 2
    assert begun["part 1"] == 2 or not interrupted[0].endswith(" begins")  # its body died with its worker
    assert {name: steps[name] for name in begun if name not in again} == {
        name: 1 for name in begun if name not in again
    }


def survivors(server: str) -> AbstractAsyncContextManager[Running]:
    return start_command("worker", "main:app", server=server, cwd=ROOT / "examples/survives")


async def written(notes: Path, line: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while line not in lines_of(notes):
            await asyncio.sleep(0.01)


def lines_of(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


async def test_a_sidecar_wakes_a_worker_that_is_not_running(database_url: str, tmp_path: Path) -> None:
    folder = ROOT / "examples/sidecar"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(start_process(database_url))
        client = await stack.enter_async_context(Client(server.listen))
        known = await stepwell_process("worker", "main:app", "--idle", "10ms", server=server.listen, cwd=folder)
        assert known[0] == 0, known
        options = ("--port", "0", "--idle", "500 ms", "--server", server.listen)
        supervisor = await stack.enter_async_context(start_program(sys.executable, "main.py", *options, cwd=folder))
        await supervisor.says("no worker runs")
        [port] = re.findall(r"on port (\d+)", supervisor.lines[0])
        wake_url = ("--wake-url", f"http://127.0.0.1:{port}/wake")
        await stack.enter_async_context(start_command("dispatcher", *wake_url, server=server.listen, cwd=tmp_path))

        reminder = await client.workflow("reminder").create(params={"after": "4 seconds"})
        reminded = await reminder.result(timeout="40 seconds")

        started = [line.split()[-1] for line in supervisor.lines if "started worker" in line]
        assert reminded == {"noted by": f"process {started[0]}", "reminded by": f"process {started[1]}"}
        assert await supervisor.stop() == 0


async def test_the_configuration_that_is_shipped_is_the_default_one() -> None:
    shipped = config.load(["--config", str(ROOT / "deploy/stepwell.toml")], "stepwell server")

    assert shipped.model_dump() == config.load([], "stepwell server").model_dump()
