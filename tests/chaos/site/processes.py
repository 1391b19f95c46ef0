"""The processes of a chaos run: started, started again, signalled, and never gone without somebody noticing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.run import Exit, Trouble

ROOT = Path(__file__).parents[3]
TROUBLE = re.compile(r"Traceback|was never awaited|was never retrieved|Task was destroyed|Fatal|StatusCode\.UNKNOWN")
"""What no process of a run ever has a reason to write."""


@dataclass
class Running:
    """One process at a time under one name."""

    name: str
    command: Callable[[], Sequence[str]]
    folder: Path
    recorder: Recorder
    environment: dict[str, str] = field(default_factory=dict)
    ready: str = ""
    """A line of its output says that it serves."""
    mortal: bool = False
    """It may end by itself."""
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    frozen: bool = False
    serves: bool = False
    _ordered: bool = False
    _logs: list[Path] = field(default_factory=list)
    _watching: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self.process is not None
        return self.process.pid

    async def start(self, seconds: float = 60.0, *, may_end: bool = False) -> None:
        """Start it, and wait until it serves. `may_end`: it is right if it ends by itself, even before that."""
        if self._watching is not None:
            await self._watching  # so that the end of the one before is not taken for the end of this one
        log = self.folder / "logs" / f"{self.name}-{self.starts}.log"
        log.parent.mkdir(exist_ok=True)
        self._logs.append(log)
        self.starts += 1
        self._ordered, self.frozen, self.serves = may_end, False, False
        with log.open("wb") as file:
            self.process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                cwd=ROOT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self.environment,
            )
        self._watching = asyncio.create_task(self._watch(self.process))
        if self.ready:
            async with asyncio.timeout(seconds):
                await self.line(self.ready)
        self.serves = True

    async def line(self, beginning: str) -> str:
        """Read its output up to a line that begins so."""
        assert self.process is not None and self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            if line.startswith(beginning):
                return line
        raise ProcessLookupError(f"{self.name} ended: {self._logs[-1].read_text()[-2000:]}")

    async def tell(self, order: dict[str, Any]) -> Any:
        """Send it a line of JSON and return its answer."""
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return json.loads(await self.process.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that ends it is an order."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._ordered, self.serves = True, False  # nobody may choose it as a victim again
        self.frozen = number == signal.SIGSTOP or (self.frozen and number != signal.SIGCONT)
        if self.alive:
            with suppress(ProcessLookupError):  # it has just ended, and nobody has noticed yet
                os.kill(self.pid, number)

    def expect_exit(self) -> None:
        """It may end by itself from now on."""
        self._ordered = True

    async def gone(self, seconds: float = 60.0) -> int:
        """Wait until it has ended, and return its exit code."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def stop(self) -> None:
        """End it for good: politely, then not."""
        if not self.alive:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            await self.gone(15)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.gone()

    def troubles(self) -> list[Trouble]:
        """What its logs hold that no log should."""
        found: list[Trouble] = []
        for log in self._logs:
            text = log.read_text(errors="replace")
            for match in TROUBLE.finditer(text):
                about = text[max(0, match.start() - 400) : match.end() + 1500]
                found.append(Trouble(log.stem, about, now_ns()))
                break  # one for each process is enough
        return found

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self.recorder.record(Exit(f"{self.name}-{self.starts - 1}", code, self._ordered or self.mortal, now_ns()))


def tasks_file(folder: Path, name: str) -> Path:
    """Where a process writes how many tasks its loop has, whenever it gets SIGUSR2."""
    return folder / f"tasks-{name}"


def count_tasks_when_asked(folder: Path, name: str) -> None:
    """Write it there."""
    path = tasks_file(folder, name)
    signal.signal(signal.SIGUSR2, lambda *_: path.write_text(str(len(asyncio.all_tasks(asyncio.get_running_loop())))))


SERVER = (sys.executable, "-m", "stepwell_server")
"""The plain program."""


def python(module: str, config: dict[str, Any]) -> list[str]:
    """The command that runs a module of this package with a configuration."""
    return [sys.executable, "-m", f"tests.chaos.{module}", json.dumps(config)]
