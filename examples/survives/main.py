"""A workflow that survives `kill -9` of its worker and of the server.

Each step writes into a file when it begins and when it is done, so that you can see which ones were executed, and how
often. In three terminals, in this folder:

stepwell server
stepwell worker main:app
stepwell workflow create survivor --params '{"file": "/tmp/survivor.txt"}' --wait "10 minutes"

Kill the worker or the server with `kill -9`, at any time and as often as you like, and start it again. The instance
goes on where it was: what is done stays done, and only a step that was executing is executed again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepwell import App, Retry, WorkflowEvent, WorkflowStep, workflow

PATIENT = Retry(limit=20, delay="1 second", backoff="constant")


@dataclass
class Work:
    """How many parts there are, how long each takes, and where it is written down."""

    file: str
    parts: int = 6
    seconds: float = 5.0


@workflow("survivor")
async def survivor(event: WorkflowEvent[Work], step: WorkflowStep) -> list[int]:
    """Does its parts one after the other, with a rest in the middle."""
    work = event.payload
    squares = []
    for part in range(work.parts):
        if part == work.parts // 2:
            await step.sleep("rest", f"{work.seconds} seconds")
        squares.append(await step.do(f"part {part}", partial(do_part, work, part), retries=PATIENT))
    return squares


async def do_part(work: Work, part: int) -> int:
    note(work, f"part {part} begins")
    await asyncio.sleep(work.seconds)
    note(work, f"part {part} is done")
    return part * part


def note(work: Work, line: str) -> None:
    with Path(work.file).open("a") as notes:
        notes.write(f"{line}\n")


app = App(workflows=[survivor])
