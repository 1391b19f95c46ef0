"""DBOS under the same loads: a library inside the caller's process, so that client and worker are this one process.

python -m bench.drivers.dbos_app DATABASE_URL      (in .venv-peers)
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from importlib.metadata import version
from typing import Any

from dbos import DBOS, DBOSConfig, WorkflowHandle, WorkflowHandleAsync

from bench.drivers.loops import Loops

THREADS = 4
POOL = 16
"""The best of the sizes that were tried on two cores: more threads only wait for the interpreter lock."""
NAP = 2.0
TOPIC = "go"
PATIENCE = 600.0


# ---- what is run


@DBOS.step()
def small_step(number: int, place: int) -> dict[str, Any]:
    """Return a small JSON at once."""
    return {"number": number, "place": place, "ok": True}


@DBOS.workflow()
def three_steps(number: int) -> int:
    """L1."""
    places = [small_step(number, place)["place"] for place in (1, 2, 3)]
    return int(sum(places))


@DBOS.step()
async def small_async_step(number: int) -> dict[str, Any]:
    """Return a small JSON at once, on the loop."""
    return {"number": number, "ok": True}


@DBOS.workflow()
async def sleeper(number: int) -> float:
    """L2: return by how much it woke too late."""
    called = time.time()
    await DBOS.sleep_async(NAP)
    late = time.time() - called - NAP
    await small_async_step(number)
    return late


@DBOS.workflow()
async def waiter(number: int) -> Any:
    """L3."""
    message = await DBOS.recv_async(TOPIC, timeout_seconds=PATIENCE)
    await small_async_step(number)
    return message


# ---- the loads


class DbosClient:
    """The async interface, and for L1 the sync one, which is as fast or faster."""

    async def three_steps(self, number: int) -> None:
        """One, in a thread: the sync interface blocks."""
        await asyncio.to_thread(lambda: land(DBOS.start_workflow(three_steps, number)))

    async def sleeper(self, number: int) -> float:
        """Start one and wait for its lateness."""
        handle = await DBOS.start_workflow_async(sleeper, number)
        return await handle.get_result()

    async def waiter(self, number: int) -> WorkflowHandleAsync[Any]:
        """Start one."""
        return await DBOS.start_workflow_async(waiter, number)

    async def signal(self, waiter: WorkflowHandleAsync[Any]) -> None:
        """Send the message and wait for the result."""
        await DBOS.send_async(waiter.workflow_id, {"value": 1}, TOPIC)
        assert await waiter.get_result() == {"value": 1}


class DbosLoops(Loops):
    """L1 through the sync interface without a hop to a thread for each workflow."""

    async def in_flight(self, order: dict[str, Any]) -> dict[str, Any]:
        """So many handles are open at a time."""
        return await asyncio.to_thread(fly, order["instances"], order["in_flight"])

    async def one_by_one(self, order: dict[str, Any]) -> dict[str, Any]:
        """Each is started when the one before is done."""
        return {"spans": await asyncio.to_thread(lambda: [span(number) for number in range(order["instances"])])}


def fly(instances: int, in_flight: int) -> dict[str, Any]:
    """Start that many, so many at a time, and return the seconds."""
    flying: deque[WorkflowHandle[int]] = deque()
    began = time.perf_counter()
    for number in range(instances):
        if len(flying) == in_flight:
            land(flying.popleft())
        flying.append(DBOS.start_workflow(three_steps, number))
    while flying:
        land(flying.popleft())
    return {"seconds": time.perf_counter() - began}


def span(number: int) -> tuple[float, float]:
    """When a workflow began and ended."""
    began = time.perf_counter()
    land(DBOS.start_workflow(three_steps, number))
    return began, time.perf_counter()


def land(handle: WorkflowHandle[int]) -> None:
    """Wait for the result."""
    assert handle.get_result() == 6


def main(url: str) -> None:
    """Launch and serve."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": POOL,
        "max_executor_threads": THREADS,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    asyncio.run(DbosLoops(DbosClient()).serve(version("dbos")))
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1])
