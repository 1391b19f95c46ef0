"""The client process of a chaos run: one user for each primitive that the run uses.

They ask a random server each time and repeat what nobody answered under the same request id, until it is answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import ChainMap
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stepwell import Client
from tests.chaos.facts.records import Recorder
from tests.chaos.site.names import NAMESPACES
from tests.chaos.workload.calls import Caller
from tests.chaos.workload.load import Load
from tests.chaos.workload.primitive import Desk
from tests.chaos.workload.primitives import PRIMITIVES


async def drive(config: dict[str, Any]) -> None:
    """All work, from its arrival to its end; then the tail that shows that everything answers again."""
    loads = [PRIMITIVES[name].load(**values) for name, values in config["loads"].items()]
    async with AsyncExitStack() as stack:
        desk = await _desk(config, loads, stack)
        users = [PRIMITIVES[load.primitive].user(load, desk) for load in loads]
        looking = [asyncio.create_task(look) for user in users for look in user.looks()]
        await asyncio.gather(*(user.bring() for user in users))
        print("ended", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # the conductor says when all is healed
        desk.caller.hasty, desk.caller.waits = 0.0, True
        for user in users:
            await user.tail()
        for one in looking:
            one.cancel()
    print("done", flush=True)


async def _desk(config: dict[str, Any], loads: list[Load], stack: AsyncExitStack) -> Desk:
    seed = config["seed"]
    rng = random.Random(f"driver/{seed}")
    recorder = Recorder(Path(config["folder"]) / "client.jsonl")
    stubs = [stub for one in PRIMITIVES.values() for stub in one.stubs]
    answers = ChainMap(*(dict(one.answers) for one in PRIMITIVES.values()))
    hasty = max(load.hasty for load in loads)
    caller = Caller(config["servers"], recorder, rng, stubs, answers, hasty)
    clients = [await stack.enter_async_context(Client(config["address"], namespace=one)) for one in NAMESPACES]
    by_namespace = dict(zip(NAMESPACES, clients, strict=True))
    return Desk(seed, rng, recorder, caller, by_namespace, began=asyncio.get_running_loop().time())


if __name__ == "__main__":
    asyncio.run(drive(json.loads(sys.argv[1])))
