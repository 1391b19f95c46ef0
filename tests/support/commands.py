"""The `stepwell` command as a process: run to its end, or kept running and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = (sys.executable, "-m", "stepwell.cli")


async def stepwell(
    *arguments: str, server: str = "", stdin: str = "", cwd: Path | None = None
) -> tuple[int | None, str, str]:
    """Run a command; its exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *(*PROGRAM, *arguments),
        *(("--server", server) if server else ()),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=cwd,
    )
    out, err = await process.communicate(stdin.encode())
    return process.returncode, out.decode(), err.decode()


@dataclass
class Running:
    """A command that goes on until it is stopped."""

    process: Process
    lines: list[str] = field(default_factory=list)
    has_ended: bool = False
    """Whether all that it printed is in `lines`."""

    async def says(self, text: str) -> None:
        """Return once it has printed the text."""
        async with asyncio.timeout(30):
            while not any(text in line for line in self.lines):
                assert not self.has_ended, self.lines
                await asyncio.sleep(0.02)

    async def collect(self) -> None:
        """Gather what it prints, to the end."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode())
        self.has_ended = True

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and return its exit code."""
        self.process.send_signal(number)
        async with asyncio.timeout(30):
            return await self.process.wait()


def start_command(*arguments: str, server: str, cwd: Path) -> AbstractAsyncContextManager[Running]:
    """A command that is killed at the end, if it still runs."""
    return start_program(*PROGRAM, *arguments, "--server", server, cwd=cwd)


@asynccontextmanager
async def start_program(*command: str, cwd: Path) -> AsyncIterator[Running]:
    """The same for any program."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=cwd,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    running = Running(process)
    reading = asyncio.create_task(running.collect())
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
        process._transport.close()  # type: ignore[attr-defined]  # else its pipe warns when it is collected
