"""Workflows of a chaos run, whose bodies write down that they begin and end; see `load.py`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from stepwell import NewInstance, Retry, WaitForEventTimeoutError, WorkflowEntrypoint, WorkflowEvent, WorkflowStep
from tests.chaos.facts.fact import key_of, now_ns
from tests.chaos.facts.workflows import Effect
from tests.chaos.workload.ledger import DeliberateFailure, Ledger
from tests.chaos.workload.workflows.load import ATTEMPTS, CHILD, ORDER, POISON, RACE, SLEEPER


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
        engine: Any = steps.step._engine
        call = engine._steps.calls.get(name)
        self.attempt = 0 if call is None else call.attempt
        self._id = uuid4().hex[:16]
        self._about = {"execution": self._id, "key": steps.key, "run": steps.event.run_number, "step": name}
        self._about |= {
            "worker": f"{Ledger.worker}-{steps.namespace}",
            "attempt": self.attempt,
            "fence": engine._reports.fence,
        }
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


HANDLERS = (OrderFlow, ParcelFlow, RaceFlow, SleeperFlow, PoisonFlow)
