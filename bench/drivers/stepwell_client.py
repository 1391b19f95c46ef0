"""A client in a process of its own: starts the loads and takes the times.

python -m bench.drivers.stepwell_client ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import uvloop
from google.protobuf.duration_pb2 import Duration

from bench.drivers.orders import announce, answer, next_order
from bench.drivers.stepwell_app import APPROVAL, Sleeper, ThreeSteps, Waiter
from stepwell import Client, __version__
from stepwell.payloads import from_payload, to_payload
from stepwell.v1 import workflows_pb2 as pb

PATIENCE = "10 minutes"
LONGEST_WAIT = 30
"""Seconds that one call may wait for a result."""

Work: TypeAlias = Callable[[Client, int], Awaitable[None]]


async def burst(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """L1, as a user writes it: create, then wait for the result."""
    return await in_flight(client, order, three_steps)


async def unary(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """L1, one CreateInstance with `wait` per workflow."""
    return await in_flight(client, order, three_steps_in_one_call)


async def in_flight(client: Client, order: dict[str, Any], work: Work) -> dict[str, Any]:
    """So many callers, each starting one and waiting for it, until all are done."""
    numbers = iter(range(order["instances"]))

    async def caller() -> None:
        for number in numbers:
            await work(client, number)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(order["in_flight"])))
    return {"seconds": time.perf_counter() - began}


async def one_by_one(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """L1: each is started when the one before is done."""
    latencies = []
    for number in range(order["instances"]):
        began = time.perf_counter()
        await three_steps(client, number)
        latencies.append(time.perf_counter() - began)
    return {"latencies": latencies}


async def three_steps(client: Client, number: int) -> None:
    """Start one and wait for its result, which is checked."""
    instance = await client.workflow(ThreeSteps).create(params={"number": number})
    assert await instance.result(timeout=PATIENCE) == 6


async def three_steps_in_one_call(client: Client, number: int) -> None:
    """The same with the generated stub, as a client without an SDK would."""
    request = pb.CreateInstanceRequest(
        workflow=ThreeSteps.name, params=to_payload({"number": number}), wait=Duration(seconds=LONGEST_WAIT)
    )
    answered = await client.stub.CreateInstance(request, timeout=2 * LONGEST_WAIT)
    assert from_payload(answered.instance.output) == 6


async def sleepers(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """L2: all at once."""

    async def one(number: int) -> float:
        instance = await client.workflow(Sleeper).create(params={"number": number})
        return float(await instance.result(timeout=PATIENCE))

    return {"lateness": await asyncio.gather(*map(one, range(order["instances"])))}


async def signals(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """L3: some of the waiting are sent their event one at a time, then all others at once."""
    workflow = client.workflow(Waiter)
    numbers = range(order["instances"])
    instances = await asyncio.gather(*(workflow.create(params={"number": number}) for number in numbers))
    await asyncio.sleep(order["settle"])
    alone = [await signal(instance) for instance in instances[: order["alone"]]]
    began = time.perf_counter()
    burst = await asyncio.gather(*map(signal, instances[order["alone"] :]))
    return {"alone": alone, "burst": burst, "burst_seconds": time.perf_counter() - began}


async def signal(instance: Any) -> float:
    """Seconds from sending the event to the result."""
    began = time.perf_counter()
    await instance.send_event(APPROVAL, {"value": 1})
    assert await instance.result(timeout=PATIENCE) == {"value": 1}
    return time.perf_counter() - began


LOADS = {"burst": burst, "unary": unary, "one_by_one": one_by_one, "sleepers": sleepers, "signals": signals}


async def main(address: str) -> None:
    """Connect, then work on orders until there are no more."""
    async with Client(address) as client:
        announce(__version__)
        while order := await asyncio.to_thread(next_order):
            answer(await LOADS[order["load"]](client, order))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
