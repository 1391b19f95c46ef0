"""Examples and the README's sessions do what they say."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stepwell_server import config
from tests.support.servers import start_process

ROOT = Path(__file__).parents[2]


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


async def test_the_configuration_that_is_shipped_is_the_default_one() -> None:
    shipped = config.load(["--config", str(ROOT / "deploy/stepwell.toml")], "stepwell server")

    assert shipped.model_dump() == config.load([], "stepwell server").model_dump()
