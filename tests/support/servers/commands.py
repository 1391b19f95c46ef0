"""The `stepwell` command: run to its end in this process, or a process of its own that is kept running and killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from stepwell.cli.commands import run
from tests.support.patience import PATIENCE

PROGRAM = (sys.executable, "-m", "stepwell.cli")


async def stepwell(
    *arguments: str, server: str = "", stdin: str = "", cwd: Path | None = None
) -> tuple[int | None, str, str]:
    """Run a command in this process, on a thread; its exit code, output and errors."""
    return await asyncio.to_thread(_run, _given(arguments, server), stdin, cwd)


async def stepwell_process(*arguments: str, server: str = "", cwd: Path | None = None) -> tuple[int | None, str, str]:
    """The same in a process of its own, as a person runs it; for commands that hear signals it takes one."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *_given(arguments, server), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=cwd
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def _given(arguments: Sequence[str], server: str) -> list[str]:
    return [*arguments, *(("--server", server) if server else ())]


def _run(arguments: list[str], stdin: str, cwd: Path | None) -> tuple[int | None, str, str]:
    with _streams(stdin) as (out, err), _folder(cwd), _own_logging():
        try:
            code: int | str | None = run(arguments)
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


class _PerThread:
    """A standard stream that is each thread's own while it runs a command, and the process's for all others."""

    def __init__(self, usual: TextIO) -> None:
        self.usual = usual
        self.own = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.own, "stream", self.usual), name)


@contextmanager
def _streams(stdin: str) -> Iterator[tuple[StringIO, StringIO]]:
    streams = {"stdin": StringIO(stdin), "stdout": StringIO(), "stderr": StringIO()}
    for name, stream in streams.items():
        if not isinstance(getattr(sys, name), _PerThread):
            setattr(sys, name, _PerThread(getattr(sys, name)))
        getattr(sys, name).own.stream = stream
    try:
        yield streams["stdout"], streams["stderr"]
    finally:
        for name in streams:
            del getattr(sys, name).own.stream


@contextmanager
def _folder(cwd: Path | None) -> Iterator[None]:
    """Be in a folder, whose modules are forgotten afterwards: another test has others of the same name."""
    if cwd is None:
        yield
        return
    before, path = os.getcwd(), list(sys.path)
    os.chdir(cwd)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(cwd)):
                del sys.modules[name]


@contextmanager
def _own_logging() -> Iterator[None]:
    handlers, level = list(logging.root.handlers), logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


@dataclass
class Running:
    """A command that goes on until it is stopped."""

    process: Process
    lines: list[str] = field(default_factory=list)
    has_ended: bool = False
    """Whether all that it printed is in `lines`."""

    async def says(self, text: str, times: int = 1) -> None:
        """Return once it has printed the text, in so many lines."""
        async with asyncio.timeout(PATIENCE):
            while sum(text in line for line in self.lines) < times:
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
        async with asyncio.timeout(PATIENCE):
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
