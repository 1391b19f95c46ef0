"""Many workers at once: raw streams that say Hello in the same moment. Prints how many were welcome in time.

python -m tests.chaos.faults.herd '{"servers": ["127.0.0.1:7350"], "streams": 300, "seconds": 15}'
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
from typing import Any

from grpc import aio

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workers_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from tests.chaos.site.names import NAMESPACE
from tests.chaos.workload.workflows.load import CHILD

STREAMS_PER_CHANNEL = 10
LONGEST_PAUSE = 0.5
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000)]


async def come(servers: list[str], streams: int, seconds: float) -> int:
    """Open all streams, spread over the servers, and keep each until the last one is welcome or the time is up."""
    channels = [
        aio.insecure_channel(servers[number % len(servers)], options=_OPTIONS)
        for number in range(-(-streams // STREAMS_PER_CHANNEL))
    ]
    tasks = [asyncio.create_task(_welcomed(channels[number % len(channels)])) for number in range(streams)]
    done, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    for call in [task.result() for task in done]:
        call.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    await asyncio.gather(*(channel.close() for channel in channels))
    return len(done)


async def _welcomed(channel: aio.Channel) -> Any:
    """A stream that was welcomed, after as many tries as it takes."""
    handler = pb.Handler(kind=pb.HANDLER_KIND_WORKFLOW, name=CHILD)
    hello = pb.Hello(worker_id="herd", session_id=secrets.token_hex(16), sdk="herd/1", protocol_version=1)
    hello.namespace = NAMESPACE
    hello.handlers.append(handler)
    while True:
        call = WorkerServiceStub(channel).Connect()
        try:
            await call.write(workers_pb2.ConnectRequest(frames=[pb.WorkerFrame(hello=hello)]))
            message: Any = await call.read()
            if message is not aio.EOF and any(frame.HasField("welcome") for frame in message.frames):
                return call
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        call.cancel()
        await asyncio.sleep(random.uniform(0, LONGEST_PAUSE))


if __name__ == "__main__":
    print(asyncio.run(come(**json.loads(sys.argv[1]))))
