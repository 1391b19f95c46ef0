"""`stepwell worker` and `stepwell dev`: an app of a user's own, in a folder of a user's own."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell import Client
from tests.support.patience import PATIENCE
from tests.support.servers.commands import start_command, stepwell, stepwell_process
from tests.support.servers.servers import ServerProcess, start_process

PROGRAM = '''
import asyncio
import pathlib

from stepwell import App, NonRetryableError, workflow


@workflow("slow")
async def slow(event, step):
    """Takes as long as its file is not there."""

    async def body():
        pathlib.Path("begun").touch()
        while not pathlib.Path("go on").exists():
            await asyncio.sleep(0.01)
        return "done"

    return await step.do("wait for a file", body)


@workflow("quick")
async def quick(event, step):
    return event.payload


@workflow("broken")
async def broken(event, step):
    def body():
        raise NonRetryableError("the valve is stuck")

    await step.do("open the valve", body)


app = App(workflows=[slow, quick, broken])
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "faulty.py").write_text("import no_such_module\n")
    return tmp_path


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[ServerProcess]:
    async with start_process(sqlite_url) as running:
        yield running


@pytest.fixture
def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def there(file: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not file.exists():  # noqa: ASYNC240 - it is a look at a name
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_worker_that_is_told_to_stop_lets_its_steps_end(
    server: ServerProcess, folder: Path, number: signal.Signals
) -> None:
    async with (
        start_command("worker", "program:app", server=server.listen, cwd=folder) as worker,
        Client(server.listen) as client,
    ):
        await worker.says("serves slow, quick, broken at")
        slow = await client.workflow("slow").create()
        await there(folder / "begun")

        stopping = asyncio.create_task(worker.stop(number))
        await worker.says("stops when what it executes has ended")
        (folder / "go on").touch()

        assert await stopping == 0
        [step] = await slow.history()
        assert (step.result, step.attempts) == ("done", 1)  # type: ignore[union-attr]


async def test_a_second_signal_ends_a_worker_at_once(server: ServerProcess, folder: Path) -> None:
    async with (
        start_command("worker", "program", server=server.listen, cwd=folder) as worker,
        Client(server.listen) as client,
    ):
        await worker.says("serves slow")
        await client.workflow("slow").create()
        await there(folder / "begun")

        worker.process.send_signal(signal.SIGTERM)
        await worker.says("stops when what it executes has ended")
        assert await worker.stop(signal.SIGTERM) == 128 + signal.SIGTERM


async def test_a_worker_says_which_step_failed_and_where(server: ServerProcess, folder: Path) -> None:
    async with (
        start_command("worker", "program", server=server.listen, cwd=folder) as worker,
        Client(server.listen) as client,
    ):
        await worker.says("serves")
        await client.workflow("broken").create(id="it", wait="20 seconds")
        await worker.says("NonRetryableError: the valve is stuck")

    [line] = [line for line in worker.lines if "step_failed" in line]
    assert "workflow=broken" in line and "instance_id=it" in line and "step=open the valve" in line
    assert any('program.py", line ' in line for line in worker.lines)


@pytest.mark.parametrize(
    ("app", "code", "why"),
    [
        ("nowhere:app", 2, "there is no module nowhere in "),
        ("program:other", 2, "the module program has no App called other: it has app"),
        ("faulty:app", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("program.py", 2, "name a module of this folder, not a file: program:app"),
        ("./sub/program.py:other", 2, "name a module of this folder, not a file: sub.program:other"),
        (":app", 2, "name a module of this folder, not a file: MODULE:app"),
    ],
)
async def test_an_app_that_is_not_there_is_said_to_be_missing(folder: Path, app: str, code: int, why: str) -> None:
    found, _, err = await stepwell("worker", app, cwd=folder)

    assert found == code
    assert why in err


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("from stepwell import App\napp = App(workflows=[print])", "a workflow is a WorkflowEntrypoint class or made"),
    ],
)
async def test_an_app_that_cannot_be_imported_is_shown_where_it_fails(tmp_path: Path, program: str, why: str) -> None:
    (tmp_path / "wrong.py").write_text(program)

    code, _, err = await stepwell("worker", "wrong:app", cwd=tmp_path)

    assert code == 1
    assert f'File "{tmp_path}/wrong.py", line {program.count(chr(10)) + 1}' in err and why in err
    assert err.endswith("stepwell: the module wrong cannot be imported\n")
    assert "importlib" not in err and "typer" not in err


async def test_a_worker_without_a_server_gives_up(folder: Path) -> None:
    code, _, err = await stepwell_process(
        "worker", "program", "--connect-timeout", "1s", server="127.0.0.1:1", cwd=folder
    )

    assert code == 1
    assert err.splitlines()[-1].startswith("stepwell: no server answers at 127.0.0.1:1")


async def test_dev_is_a_server_and_a_worker_until_ctrl_c(folder: Path, free_address: str) -> None:
    async with start_command("dev", "program", server=free_address, cwd=folder) as dev:
        await dev.says(f"a server runs at {free_address} on sqlite:///stepwell.db")
        await dev.says("serves slow, quick")
        async with Client(free_address) as client:
            quick = await client.workflow("quick").create(params={"n": 1})
            assert await quick.result(timeout="10 seconds") == {"n": 1}

        assert await dev.stop(signal.SIGINT) == 0

    assert (folder / "stepwell.db").exists()
    assert not answers(free_address)


async def test_dev_joins_a_server_that_runs(server: ServerProcess, folder: Path) -> None:
    async with start_command("dev", "program", server=server.listen, cwd=folder) as dev:
        await dev.says("already: joining it")
        await dev.says("serves slow, quick")
        assert await dev.stop(signal.SIGINT) == 0

    assert answers(server.listen)


async def test_dev_ends_when_its_server_cannot_start(folder: Path, free_address: str) -> None:
    code, _, err = await stepwell_process("dev", "program", "--database", "mysql://x", server=free_address, cwd=folder)

    assert code == 1
    assert "database must begin with sqlite: or postgresql:" in err
    assert err.splitlines()[-1] == "stepwell: the server did not start (exit code 2)"


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
