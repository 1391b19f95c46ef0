"""A worker of a chaos run: real handlers of every primitive, and a ledger of what they do."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell import App, CallFailed, Client, Worker
from stepwell.errors import StepFailed
from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.dialogue import Dialogue
from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.tasks import GivenUp
from tests.chaos.site.names import ELSEWHERE
from tests.chaos.site.processes import count_tasks_when_asked
from tests.chaos.workload import zombies
from tests.chaos.workload.ledger import DeliberateFailure, Ledger
from tests.chaos.workload.primitives import PRIMITIVES

CACHE = 20
"""Suspended runs that stay in memory: those of a few seconds, so that some are forgotten in every run."""


def note_what_is_let_go() -> None:
    """Write down which leases this process gives up by itself, and which it is told to have lost."""
    expire, receive = Dialogue.expire, Dialogue.receive

    def expiring(self: Dialogue) -> None:
        before = _leases(self)
        expire(self)
        for lease in before - _leases(self):
            Ledger.recorder.record(GivenUp(Ledger.worker, *lease, now_ns()))

    def receiving(self: Dialogue, frame: pb.ServerFrame) -> None:
        if frame.HasField("stale"):
            Ledger.recorder.record(GivenUp(Ledger.worker, frame.task_id, frame.fence, now_ns(), told=True))
        receive(self, frame)

    Dialogue.expire = expiring  # type: ignore[method-assign]
    Dialogue.receive = receiving  # type: ignore[method-assign]


def _leases(dialogue: Dialogue) -> set[tuple[int, int]]:
    return {(lease.task_id, lease.fence) for lease in dialogue.held.leases}


class Quiet(logging.Formatter):
    """Failures of bodies are part of the plan: their tracebacks would hide those that are not."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging has for it
        is_planned = isinstance(ei[1], DeliberateFailure | StepFailed | CallFailed | asyncio.CancelledError)
        return repr(ei[1]) if is_planned else super().formatException(ei)


async def work(config: dict[str, Any]) -> None:
    """Work until SIGTERM, through everything."""
    handler = logging.StreamHandler()
    handler.setFormatter(Quiet("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    Ledger.open(Path(config["folder"]), config["name"])
    zombies.count_stale(Ledger.recorder)
    note_what_is_let_go()
    if config["zombie"]:
        zombies.know_no_better()
    app = App(**{kind: [*handlers] for one in PRIMITIVES.values() for kind, handlers in one.handlers.items()})
    async with Client(config["address"]) as home, Client(config["address"], namespace=ELSEWHERE) as elsewhere:
        limits: dict[str, Any] = {"max_tasks": config["slots"], "cache": CACHE, "grace": config["grace"] * 1000}
        workers = [Worker(client, app, worker_id=config["name"], **limits) for client in (home, elsewhere)]
        working = asyncio.create_task(_all_of(workers))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        count_tasks_when_asked(Path(config["folder"]), config["name"])
        print("ready", flush=True)
        with suppress(asyncio.CancelledError):
            await working


async def _all_of(workers: list[Worker]) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())


if __name__ == "__main__":
    try:
        asyncio.run(work(json.loads(sys.argv[1])))
    except* CallFailed as refused:
        sys.exit(f"refused: {refused}")
