"""The pages of docs/ and the README do what they say: their code is run as it stands there."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.testing import Harness
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.support.pages import ROOT, blocks
from tests.support.servers.commands import start_command
from tests.support.servers.servers import ServerProcess, start_process

PRINTED_ADDRESS = "127.0.0.1:7350"
FIVE_MINUTES = "A workflow in five minutes"
PAGES = [
    "README.md",
    "clients/python/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))),
]
PROMISED = "{'config': {'enabled': True}, 'approved': True} complete"


@pytest.fixture
def shell_path(tmp_path: Path) -> str:
    """A PATH that has grpcurl: the real one, or the few lines of ours that the pages need."""
    if shutil.which("grpcurl"):
        return os.environ["PATH"]
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "grpcurl"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.support.calls.grpcurl "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


async def run_blocks(texts: list[str], server: ServerProcess, path: str, folder: Path) -> list[tuple[int, str]]:
    """Run the blocks in one shell; the exit code of each one's last command, and what it printed."""
    mark = "=-=-= "
    script = "".join(f"{text}\ncode=$?; echo; echo '{mark}'$code\n" for text in texts).replace(
        PRINTED_ADDRESS, server.listen
    )
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"PATH": path, "STEPWELL_SERVER": server.listen},
        cwd=folder,
    )
    printed, _ = await process.communicate()
    results, before = [], ""
    for line in printed.decode().splitlines():
        if line.startswith(mark):
            results.append((int(line.removeprefix(mark)), before))
            before = ""
        else:
            before += f"{line}\n"
    return results


async def test_a_person_with_grpcurl_is_a_worker(sqlite_url: str, shell_path: str, tmp_path: Path) -> None:
    page = blocks("docs/guides/worker-by-hand.md", "sh")
    async with start_process(sqlite_url, "--leases.ack-window", "600", "--leases.lease", "600") as server:
        *done, late = await run_blocks(page, server, shell_path, tmp_path)
        async with server.channel() as channel:
            stub = WorkflowServiceStub(channel)
            named = {"workflow": "greet", "instance_id": "first"}
            instance = (await stub.GetInstance(pb.GetInstanceRequest(**named))).instance
            history = (await stub.GetHistory(pb.GetHistoryRequest(**named))).entries

    assert [code for code, _ in done] == [0] * len(done), done
    assert late[0] != 0 and "the run was ended or restarted" in late[1]
    assert instance.status == pb.INSTANCE_STATUS_COMPLETE
    assert json.loads(instance.output.json) == {"greeting": "Hello, Ada"}
    steps = [entry.step.name for entry in history if entry.HasField("step")]
    assert steps == ["compose", "await approval", "send"]
    assert [entry.event.consumed_by_step for entry in history if entry.HasField("event")] == ["await approval"]


@pytest.mark.parametrize("page", PAGES)
def test_python_on_pages_can_be_read_by_python(page: str) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


async def test_the_readme_leads_to_a_workflow_of_ones_own(sqlite_url: str, tmp_path: Path) -> None:
    [program] = blocks("README.md", "python", under=FIVE_MINUTES)
    run_it, steer_it = blocks("README.md", "sh", under=FIVE_MINUTES)
    async with start_process(sqlite_url) as server:
        (tmp_path / "orders.py").write_text(program.replace(PRINTED_ADDRESS, server.listen))
        (tmp_path / ".venv").symlink_to(sys.prefix)

        results = await run_blocks([run_it, run_it], server, os.environ["PATH"], tmp_path)
        assert [(code, text.strip()) for code, text in results] == [(0, PROMISED)] * 2

        async with start_command("worker", "orders:app", server=server.listen, cwd=tmp_path) as worker:
            await worker.says("serves order")
            [(code, printed)] = await run_blocks([steer_it], server, os.environ["PATH"], tmp_path)

    assert code == 0, printed
    assert "created order first" in printed
    assert 'order first is complete: {"config":{"enabled":true},"approved":true}' in printed


async def test_the_program_of_the_sdks_page_runs(sqlite_url: str, tmp_path: Path) -> None:
    [program] = blocks("clients/python/README.md", "python")
    async with start_process(sqlite_url) as server:
        (tmp_path / "greet.py").write_text(program.replace(PRINTED_ADDRESS, server.listen))
        results = await run_blocks([f"{sys.executable} greet.py"], server, os.environ["PATH"], tmp_path)

    assert [(code, text.strip()) for code, text in results] == [(0, "hello Ada")]


async def test_the_workflow_that_explains_workflows_runs() -> None:
    page: dict[str, Any] = {}
    exec(blocks("docs/concepts/workflows.md", "python")[0], page)

    async with Harness(page["app"], cache=0) as h:
        order = await h.start("order", id="first")
        await h.send_event(order, "approval", {"approved": True})
        await h.advance("14 days")
        assert await order.result() == {"status": "final", "receipt": {"charged": 42, "key": "first"}}


async def test_the_hook_that_explains_hooks_runs() -> None:
    page: dict[str, Any] = {}
    exec(blocks("docs/concepts/hooks.md", "python")[0], page)

    async with Harness(page["app"]) as h:
        good = await h.trigger("send-receipt", {"email": "ada@example.com"})
        bad = await h.trigger("send-receipt")
        key = (await good.status()).idempotency_key

        assert page["sent"] == {key: "ada@example.com"}
        state = await bad.status()
        assert (state.status, state.attempts) == ("failed", 1)
        assert state.error is not None and state.error.message == "nobody to send it to"


async def test_the_tests_of_the_guide_to_testing_pass(tmp_path: Path) -> None:
    file = tmp_path / "test_trial.py"
    file.write_text("\n".join(blocks("docs/guides/testing-workflows.md", "python")))

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
    )
    printed, _ = await process.communicate()

    assert process.returncode == 0, printed.decode()
    assert "4 passed" in printed.decode()
