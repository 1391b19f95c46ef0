"""A worker of a chaos run: real workflows whose bodies write down, and fsync, that they begin and end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
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
    JobContext,
    NewInstance,
    Retry,
    WaitForEventTimeoutError,
    Worker,
    WorkflowEntrypoint,
    WorkflowEvent,
    WorkflowStep,
    hook,
)
from stepwell.errors import StepFailed
from stepwell.holdings import Holdings
from stepwell.v1 import workers_pb2 as pb
from tests.chaos.facts.fact import key_of, now_ns
from tests.chaos.facts.hooks import Handling
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.tasks import GivenUp
from tests.chaos.facts.workflows import Effect
from tests.chaos.site.processes import count_tasks_when_asked
from tests.chaos.workload import zombies
from tests.chaos.workload.workflows.load import ATTEMPTS, CHILD, ELSEWHERE, ORDER, POISON, RACE, SLEEPER

CACHE = 20
"""Suspended runs that stay in memory: those of a few seconds, so that some are forgotten in every run."""


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

    def __init__(self, flow: WorkflowEntrypoint[Any, Any], event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        assert flow._client is not None
        self.namespace = flow._client.namespace
        self.event = event
        self.step = step
        self.key = key_of(self.namespace, flow.name, event.instance_id)
        self.attempts = event.payload.get("attempts", ATTEMPTS)
        self._rng = random.Random(f"{event.instance_id}/{event.run_number}")

    async def do(
        self,
        name: str,
        work: Callable[[], Awaitable[None]] | None = None,
        failures: int = 0,
        in_thread: bool = False,
    ) -> Any:
        """A step whose body fails so often, then does the work, and returns what no other execution returns.

        A body on the loop is cancelled when its lease is lost; one in a thread goes on, and is a zombie then.
        """
        seconds = self._rng.uniform(0, self.event.payload.get("body_ms", 0)) / 1000

        async def body() -> dict[str, str]:
            execution = Execution(self, name)
            await asyncio.sleep(seconds)
            if execution.attempt <= failures:
                raise execution.failed()
            if work is not None:
                await work()
            return execution.ended()

        def body_in_thread() -> dict[str, str]:
            execution = Execution(self, name)
            select.select([], [], [], seconds)  # time.sleep fails on a clock that libfaketime moves
            return execution.ended()

        chosen: Any = body_in_thread if in_thread else body
        retry = Retry(limit=self.attempts - 1, delay="50 ms", backoff="constant")
        return await self.step.do(name, chosen, retries=retry, timeout="1 minute")

    async def approval(self) -> Any:
        """The event, or None if it did not come in time."""
        wait = self.event.payload["wait"] * 1000
        try:
            return (await self.step.wait_for_event("approval", type="approval", timeout=wait)).payload
        except WaitForEventTimeoutError:
            return None


class Execution:
    """One execution of a body, in the ledger from its first moment on."""

    def __init__(self, steps: Steps, name: str) -> None:
        run: Any = steps.step._engine
        call = run._calls.get(name)
        self.attempt = 0 if call is None else call.attempt
        self._id = uuid4().hex[:16]
        self._about = {"execution": self._id, "key": steps.key, "run": steps.event.run_number, "step": name}
        self._about |= {"worker": f"{Ledger.worker}-{steps.namespace}", "attempt": self.attempt, "fence": run.fence}
        self._note("start")

    def failed(self) -> DeliberateFailure:
        """It fails, as planned."""
        self._note("fail")
        return DeliberateFailure(f"attempt {self.attempt}")

    def ended(self) -> dict[str, str]:
        """It returns what no other execution does."""
        value = {"step": self._about["step"], "execution": self._id}
        self._note("end", json.dumps(value, separators=(",", ":")))
        return value

    def _note(self, phase: Any, value: str | None = None) -> None:
        Ledger.recorder.record(Effect(**self._about, phase=phase, mono_ns=now_ns(), value=value))


class OrderFlow(WorkflowEntrypoint[Any, Any]):
    """An order; see the model."""

    name = ORDER

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        steps = Steps(self, event, step)
        output = {"reserve": await steps.do("reserve", in_thread=True)}
        if "nap_until_ms" in event.payload:
            await step.sleep_until("nap", event.payload["nap_until_ms"])
        else:
            await step.sleep("nap", event.payload["nap"] * 1000)
        approval = await steps.approval()
        if not event.payload["aimed"]:
            output["approval"] = approval
        output["charge"] = await steps.do("charge", failures=event.payload["failures"])
        output["spawn"] = await steps.do("spawn", lambda: self._start_parcel(event))
        output["ship"] = await steps.do("ship", in_thread=True)
        return output

    async def _start_parcel(self, event: WorkflowEvent[Any]) -> None:
        """Start the child; the execution before this one may have done it."""
        await self.workflow(CHILD).create_batch([NewInstance(id=f"{event.instance_id}-parcel", params={})])


class ParcelFlow(WorkflowEntrypoint[Any, Any]):
    """The child of an order."""

    name = CHILD

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        return {"pack": await Steps(self, event, step).do("pack")}


class RaceFlow(WorkflowEntrypoint[Any, Any]):
    """Nothing but a wait whose event comes when its time is up."""

    name = RACE

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        await Steps(self, event, step).approval()
        await step.sleep("tail", "400 ms")  # an instance that has ended takes no events, and the late ones count
        return {}


class SleeperFlow(WorkflowEntrypoint[Any, Any]):
    """A sleep that outlasts the run."""

    name = SLEEPER

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        await Steps(self, event, step).approval()
        await step.sleep("rest", "300 d")


class PoisonFlow(WorkflowEntrypoint[Any, Any]):
    """A step that no worker survives."""

    name = POISON

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        return {"die": await Steps(self, event, step).do("die", die)}


@hook("note")
async def note(payload: Any, ctx: JobContext) -> None:
    """A hook; see the model."""
    about = {"execution": uuid4().hex[:16], "hook_id": ctx.id, "worker": Ledger.worker}
    about |= {"attempt": ctx.attempt, "idempotency_key": ctx.idempotency_key}
    Ledger.recorder.record(Handling(**about, phase="start", mono_ns=now_ns()))
    if ctx.attempt <= payload["failures"]:
        Ledger.recorder.record(Handling(**about, phase="fail", mono_ns=now_ns()))
        raise DeliberateFailure(f"attempt {ctx.attempt}")
    Ledger.recorder.record(Handling(**about, phase="end", mono_ns=now_ns()))


def note_what_is_let_go() -> None:
    """Write down which leases this process gives up by itself, and which it is told to have lost."""
    expire, receive = Holdings.expire, Holdings.receive

    def expiring(self: Holdings) -> None:
        before = _leases(self)
        expire(self)
        for lease in before - _leases(self):
            Ledger.recorder.record(GivenUp(Ledger.worker, *lease, now_ns()))

    def receiving(self: Holdings, frame: pb.ServerFrame) -> None:
        if frame.HasField("stale"):
            Ledger.recorder.record(GivenUp(Ledger.worker, frame.task_id, frame.fence, now_ns(), told=True))
        receive(self, frame)

    Holdings.expire = expiring  # type: ignore[method-assign]
    Holdings.receive = receiving  # type: ignore[method-assign]


def _leases(holdings: Holdings) -> set[tuple[int, int]]:
    return {(held.task_id, held.fence) for held in holdings.held()}


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
    app = App(workflows=[OrderFlow, ParcelFlow, RaceFlow, SleeperFlow, PoisonFlow], hooks=[note])
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
