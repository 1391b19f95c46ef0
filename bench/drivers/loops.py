"""The loads as loops: the same for every engine, over the few things that its client can do.

Needs nothing but the standard library, because peers run in environments of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from bench.drivers.orders import announce, answer, next_order


class Client(Protocol):
    """What a load asks of an engine. Each method checks the result that it gets.

    A client whose natural way to start workflows puts several into one call also has `three_steps_in_one_call`.
    """

    async def three_steps(self, number: int) -> None:
        """Start a workflow of three steps and wait for its result."""

    async def sleeper(self, number: int) -> float:
        """Run a workflow that sleeps; return by how many seconds it woke too late."""

    async def waiter(self, number: int) -> Any:
        """Start a workflow that waits for an event; return what `signal` needs."""

    async def signal(self, waiter: Any) -> None:
        """Send the event and wait for the result."""


class Loops:
    """Takes orders of the harness and answers with times."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loads: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "in_flight": self.in_flight,
            "one_by_one": self.one_by_one,
            "sleepers": self.sleepers,
            "signals": self.signals,
        }
        if hasattr(client, "three_steps_in_one_call"):
            self.loads["a_call_each"] = self.a_call_each

    async def serve(self, version: str) -> None:
        """Work on orders until there are no more."""
        announce(version=version, loads=[*self.loads])
        while order := await asyncio.to_thread(next_order):
            answer(await self.loads[order["load"]](order))

    async def in_flight(self, order: dict[str, Any]) -> dict[str, Any]:
        """L1: so many callers, each starting a workflow and waiting for it, until all are done."""
        return await self._callers(order, self.client.three_steps)

    async def a_call_each(self, order: dict[str, Any]) -> dict[str, Any]:
        """L1, where one call starts one workflow and answers with its result."""
        return await self._callers(order, self.client.three_steps_in_one_call)  # type: ignore[attr-defined]

    async def _callers(self, order: dict[str, Any], work: Callable[[int], Awaitable[None]]) -> dict[str, Any]:
        numbers = iter(range(order["instances"]))

        async def caller() -> None:
            for number in numbers:
                await work(number)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(order["in_flight"])))
        return {"seconds": time.perf_counter() - began}

    async def one_by_one(self, order: dict[str, Any]) -> dict[str, Any]:
        """L1: each is started when the one before is done. Answers when each began and ended."""
        return {"spans": [await self._span(self.client.three_steps(number)) for number in range(order["instances"])]}

    async def sleepers(self, order: dict[str, Any]) -> dict[str, Any]:
        """L2: all at once."""
        return {"lateness": await asyncio.gather(*map(self.client.sleeper, range(order["instances"])))}

    async def signals(self, order: dict[str, Any]) -> dict[str, Any]:
        """L3: some of the waiting are sent their event one at a time, then all others at once."""
        waiters = await asyncio.gather(*map(self.client.waiter, range(order["instances"])))
        await asyncio.sleep(order["settle"])
        alone = [await self._span(self.client.signal(waiter)) for waiter in waiters[: order["alone"]]]
        began = time.perf_counter()
        await asyncio.gather(*map(self.client.signal, waiters[order["alone"] :]))
        return {"alone": alone, "seconds": time.perf_counter() - began}

    async def _span(self, work: Awaitable[None]) -> tuple[float, float]:
        began = time.perf_counter()
        await work
        return began, time.perf_counter()
