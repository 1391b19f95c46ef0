"""Where a process spends its time under L1: sampled from outside by py-spy, summed up by module and by function."""

from __future__ import annotations

import asyncio
import re
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import PEERS_PYTHON, NotInstalled
from bench.report import Table

RATE = 200
"""Samples per second: more would slow down what is measured."""
LONGEST = 300
SHOWN = 25
STOP_TIMEOUT = 60.0
FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+)\)$")


@dataclass(frozen=True, slots=True)
class Frame:
    """A function on a stack."""

    function: str
    file: str

    @property
    def package(self) -> str:
        """The library that it belongs to; for ours, the module."""
        if self.is_ours:
            return self.file
        top, slash, _ = self.file.partition("/")
        return top if slash else f"Python's {self.file}"

    @property
    def is_ours(self) -> bool:
        """True for Stepwell's own code, generated stubs left out."""
        return self.file.startswith(("stepwell", "bench")) and "/v1/" not in self.file

    def __str__(self) -> str:
        return f"{self.function} ({self.file})"


@asynccontextmanager
async def profiled(pid: int, title: str) -> AsyncIterator[None]:
    """Sample a process while the block runs, then print the tables."""
    program = PEERS_PYTHON.with_name("py-spy")
    if not program.exists():
        raise NotInstalled("py-spy")
    with tempfile.TemporaryDirectory() as folder:
        stacks = Path(folder) / "stacks"
        sampling = await asyncio.create_subprocess_exec(
            *(
                str(program),
                "record",
                "--pid",
                str(pid),
                "--format",
                "raw",
                "--function",
                "--gil",
                "--output",
                str(stacks),
            ),
            *("--rate", str(RATE), "--duration", str(LONGEST)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.sleep(1)  # it tells nobody when it has begun
            yield
            sampling.send_signal(signal.SIGINT)
            async with asyncio.timeout(STOP_TIMEOUT):
                await sampling.wait()
        finally:
            if sampling.returncode is None:
                sampling.kill()
            await sampling.wait()
        _print_profile(title, list(_stacks(stacks.read_text())))


def _stacks(text: str) -> Iterator[tuple[list[Frame], int]]:
    """Each line is a stack, outermost first, and how often it was seen busy."""
    for line in text.splitlines():
        path, _, count = line.rpartition(" ")
        found = (FRAME.match(frame) for frame in path.split(";"))
        frames = [
            Frame(match["function"], match["file"].rpartition(":")[0] or match["file"]) for match in found if match
        ]
        if frames:
            yield frames, int(count)


def _print_profile(title: str, stacks: list[tuple[list[Frame], int]]) -> None:
    packages: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for frames, count in stacks:
        packages[frames[-1].package] += count
        ours = [frame for frame in frames if frame.is_ours]
        modules[ours[-1].file if ours else "(none of ours on the stack)"] += count
        alone[str(frames[-1])] += count
        below.update({str(frame): count for frame in {*ours}})
    samples = sum(packages.values())
    print(f"\n{title}: busy in {samples} samples, {samples / RATE:.1f} s")
    _print_shares("by library, its own code only", packages, samples)
    _print_shares("by module of ours, with all that it calls outside of ours", modules, samples)
    _print_shares("by function, its own code only", alone, samples)
    _print_shares("by function of ours, with all that it calls", below, samples)


def _print_shares(title: str, counts: Counter[str], samples: int) -> None:
    rows = [[name, f"{count / samples:.1%}"] for name, count in counts.most_common(SHOWN)]
    print(Table(title, ["", "share"], rows).text())
