"""A worker of a chaos run: real workflows whose bodies write down, and fsync, that they begin and end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from stepwell import (
    App,
    CallFailed,
    Client,
    NewInstance,
    Retry,
    WaitForEventTimeoutError,
    Worker,
    WorkflowEntrypoint,
    WorkflowEvent,
    WorkflowStep,
)
from tests.chaos.model import ATTEMPTS, CHILD, FAILURES, NAMESPACE, ORDER, POISON, POISON_ATTEMPTS, RACE
from tests.chaos.records import Effect, Recorder, key_of, now_ns

RETRY = Retry(limit=ATTEMPTS - 1, delay="50 ms", backoff="constant")


class Ledger:
    """The effects of this process."""

    recorder: Recorder
    worker: str

    @classmethod
    def open(cls, folder: Path, worker: str) -> None:
        """Write to a file of this process's own."""
        cls.worker = f"{worker}-{os.getpid()}"
        cls.recorder = Recorder(folder / f"effects-{cls.worker}.jsonl", durable=True)


class DeliberateFailure(Exception):
    """What `charge` raises before it succeeds."""


class Steps:
    """Steps of one run whose bodies are written down. Results name their execution, so that no two are alike."""

    def __init__(self, workflow: str, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        self._event = event
        self._step = step
        self._key = key_of(NAMESPACE, workflow, event.instance_id)
        self._rng = random.Random(f"{event.instance_id}/{event.run_number}")

    async def do(
        self,
        name: str,
        work: Callable[[], Awaitable[None]] | None = None,
        failures: int = 0,
        retry: Retry = RETRY,
    ) -> Any:
        """A step whose body fails so often, then does the work, and returns what no other execution returns."""
        seconds = self._rng.uniform(0, self._event.payload.get("body_ms", 0)) / 1000

        async def body() -> dict[str, str]:
            run: Any = self._step._engine
            attempt, fence = run._calls[name].attempt, run.fence
            execution = uuid4().hex[:16]
            value = {"step": name, "execution": execution}

            def note(phase: str, value: str | None = None) -> None:
                about = (execution, self._key, self._event.run_number, name, phase, Ledger.worker, now_ns())
                Ledger.recorder.record(Effect(*about, attempt=attempt, fence=fence, value=value))  # type: ignore[arg-type]

            note("start")
            await asyncio.sleep(seconds)
            if attempt <= failures:
                note("fail")
                raise DeliberateFailure(f"attempt {attempt}")
            if work is not None:
                await work()
            note("end", json.dumps(value, separators=(",", ":")))
            return value

        return await self._step.do(name, body, retries=retry, timeout="1 minute")

    async def approval(self) -> Any:
        """The event, or None if it did not come in time."""
        wait = self._event.payload["wait"] * 1000
        try:
            return (await self._step.wait_for_event("approval", type="approval", timeout=wait)).payload
        except WaitForEventTimeoutError:
            return None


class OrderFlow(WorkflowEntrypoint[Any, Any]):
    """An order; see the model."""

    name = ORDER

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        steps = Steps(ORDER, event, step)
        output = {"reserve": await steps.do("reserve")}
        await step.sleep("nap", event.payload["nap"] * 1000)
        approval = await steps.approval()
        if not event.payload["aimed"]:
            output["approval"] = approval
        output["charge"] = await steps.do("charge", failures=FAILURES)
        output["spawn"] = await steps.do("spawn", lambda: self._start_parcel(event))
        output["ship"] = await steps.do("ship")
        return output

    async def _start_parcel(self, event: WorkflowEvent[Any]) -> None:
        """Start the child; the execution before this one may have done it."""
        await self.workflow(CHILD).create_batch([NewInstance(id=f"{event.instance_id}-parcel", params={})])


class ParcelFlow(WorkflowEntrypoint[Any, Any]):
    """The child of an order."""

    name = CHILD

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        return {"pack": await Steps(CHILD, event, step).do("pack")}


class RaceFlow(WorkflowEntrypoint[Any, Any]):
    """Nothing but a wait whose event comes when its time is up."""

    name = RACE

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        await Steps(RACE, event, step).approval()
        return {}


class PoisonFlow(WorkflowEntrypoint[Any, Any]):
    """A step that no worker survives."""

    name = POISON

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        retry = Retry(limit=POISON_ATTEMPTS - 1, delay="50 ms", backoff="constant")
        return {"die": await Steps(POISON, event, step).do("die", die, retry=retry)}


class Quiet(logging.Formatter):
    """Failures of bodies are part of the plan: their tracebacks would hide those that are not."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging has for it
        return repr(ei[1])


async def work(config: dict[str, Any]) -> None:
    """Work until SIGTERM, through everything."""
    handler = logging.StreamHandler()
    handler.setFormatter(Quiet("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    Ledger.open(Path(config["folder"]), config["name"])
    app = App(workflows=[OrderFlow, ParcelFlow, RaceFlow, PoisonFlow])
    async with Client(config["address"]) as client:
        worker = Worker(client, app, max_tasks=config["slots"], worker_id=config["name"])
        working = asyncio.create_task(worker.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        with suppress(asyncio.CancelledError):
            await working


if __name__ == "__main__":
    try:
        asyncio.run(work(json.loads(sys.argv[1])))
    except CallFailed as refused:
        sys.exit(f"refused: {refused}")
