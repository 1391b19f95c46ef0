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

from bench.drivers.orders import announce, answer, next_order

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


def burst(order: dict[str, Any]) -> dict[str, Any]:
    """L1: so many in flight until all are done. The sync API, which is as fast as the async one or faster."""
    began = time.perf_counter()
    flying: deque[WorkflowHandle[int]] = deque()
    for number in range(order["instances"]):
        if len(flying) == order["in_flight"]:
            _land(flying)
        flying.append(DBOS.start_workflow(three_steps, number))
    while flying:
        _land(flying)
    return {"seconds": time.perf_counter() - began}


def _land(flying: deque[WorkflowHandle[int]]) -> None:
    assert flying.popleft().get_result() == 6


def one_by_one(order: dict[str, Any]) -> dict[str, Any]:
    """L1: each is started when the one before is done."""
    latencies = []
    for number in range(order["instances"]):
        began = time.perf_counter()
        assert DBOS.start_workflow(three_steps, number).get_result() == 6
        latencies.append(time.perf_counter() - began)
    return {"latencies": latencies}


async def sleepers(order: dict[str, Any]) -> dict[str, Any]:
    """L2: all at once."""
    numbers = range(order["instances"])
    handles = await asyncio.gather(*(DBOS.start_workflow_async(sleeper, number) for number in numbers))
    return {"lateness": await asyncio.gather(*(handle.get_result() for handle in handles))}


async def signals(order: dict[str, Any]) -> dict[str, Any]:
    """L3: some of the waiting are sent their event one at a time, then all others at once."""
    numbers = range(order["instances"])
    handles = await asyncio.gather(*(DBOS.start_workflow_async(waiter, number) for number in numbers))
    await asyncio.sleep(order["settle"])
    alone = [await _signal(handle) for handle in handles[: order["alone"]]]
    began = time.perf_counter()
    burst = await asyncio.gather(*(_signal(handle) for handle in handles[order["alone"] :]))
    return {"alone": alone, "burst": burst, "burst_seconds": time.perf_counter() - began}


async def _signal(handle: WorkflowHandleAsync[Any]) -> float:
    began = time.perf_counter()
    await DBOS.send_async(handle.workflow_id, {"value": 1}, TOPIC)
    assert await handle.get_result() == {"value": 1}
    return time.perf_counter() - began


def main(url: str) -> None:
    """Launch, then work on orders until there are no more."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": POOL,
        "max_executor_threads": THREADS,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    announce(version("dbos"))
    with asyncio.Runner() as runner:  # one loop for all orders: DBOS stays with the first that it sees
        while order := next_order():
            match order["load"]:
                case "burst":
                    answer(burst(order))
                case "one_by_one":
                    answer(one_by_one(order))
                case "sleepers":
                    answer(runner.run(sleepers(order)))
                case "signals":
                    answer(runner.run(signals(order)))
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1])
