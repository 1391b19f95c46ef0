"""Restate's client: one HTTP call per workflow, which answers with the result.

python -m bench.drivers.restate_client INGRESS_URL ADMIN_URL WORKER_URL VERSION      (in .venv-peers)
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import uuid4

import aiohttp
import uvloop

from bench.drivers.loops import Loops

PAUSE = 0.2
PATIENCE = 60.0


class RestateClient:
    """The loads over the ingress."""

    def __init__(self, session: aiohttp.ClientSession, ingress: str) -> None:
        self.session = session
        self.ingress = ingress

    async def three_steps(self, number: int) -> None:
        """One call."""
        assert await self._call("orders/three_steps", number) == 6

    async def sleeper(self, number: int) -> float:
        """One call."""
        return float(await self._call("orders/sleeper", number))

    async def waiter(self, number: int) -> tuple[str, asyncio.Task[Any]]:
        """Begin the call that waits for the result."""
        key = f"{number}-{uuid4().hex}"
        return key, asyncio.create_task(self._call(f"waiter/{key}/run", number))

    async def signal(self, waiter: tuple[str, asyncio.Task[Any]]) -> None:
        """Send the event one way, then wait for the result."""
        key, result = waiter
        await self._call(f"waiter/{key}/approve/send", 1)
        assert await result == {"value": 1}

    async def _call(self, path: str, body: Any) -> Any:
        async with self.session.post(f"{self.ingress}/{path}", json=body) as response:
            response.raise_for_status()
            return await response.json()


async def register(session: aiohttp.ClientSession, admin: str, worker: str) -> None:
    """Tell the server where the worker is, once both are there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with session.post(f"{admin}/deployments", json={"uri": worker}) as response:
                    if response.ok:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(PAUSE)


async def main(ingress: str, admin: str, worker: str, version: str) -> None:
    """Register the worker and serve."""
    limits: Any = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(total=600)}
    async with aiohttp.ClientSession(**limits) as session:
        await register(session, admin, worker)
        await Loops(RestateClient(session, ingress)).serve(version)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
