"""Stepwell's client in a process of its own.

python -m bench.drivers.stepwell_client ADDRESS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvloop
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from bench.drivers.loops import Loops
from bench.drivers.stepwell_app import APPROVAL, Sleeper, ThreeSteps, Waiter
from stepwell import Client, Instance, __version__, open_channel
from stepwell.v1 import common_pb2, workflows_pb2
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub

PATIENCE = "10 minutes"
LONGEST_WAIT = 30
"""Seconds that one call may wait for a result."""


class StepwellClient:
    """The loads as a user of the SDK writes them."""

    def __init__(self, client: Client, channel: aio.Channel) -> None:
        self.client = client
        self.stub = WorkflowServiceStub(channel)

    async def three_steps(self, number: int) -> None:
        """Create, then wait for the result."""
        instance = await self.client.workflow(ThreeSteps).create(params={"number": number})
        assert await instance.result(timeout=PATIENCE) == 6

    async def three_steps_in_one_call(self, number: int) -> None:
        """The same with the generated stub, as a client without an SDK would."""
        request = workflows_pb2.CreateInstanceRequest(
            workflow=ThreeSteps.name,
            params=common_pb2.Payload(json=json.dumps({"number": number})),
            wait=Duration(seconds=LONGEST_WAIT),
        )
        answered = await self.stub.CreateInstance(request, timeout=2 * LONGEST_WAIT)
        assert json.loads(answered.instance.output.json) == 6

    async def sleeper(self, number: int) -> float:
        """Create, then wait for the lateness."""
        instance = await self.client.workflow(Sleeper).create(params={"number": number})
        return float(await instance.result(timeout=PATIENCE))

    async def waiter(self, number: int) -> Instance[Any]:
        """Create one."""
        return await self.client.workflow(Waiter).create(params={"number": number})

    async def signal(self, waiter: Instance[Any]) -> None:
        """Send the event, then wait for the result."""
        await waiter.send_event(APPROVAL, {"value": 1})
        assert await waiter.result(timeout=PATIENCE) == {"value": 1}


async def main(address: str) -> None:
    """Connect and serve."""
    async with Client(address) as client, open_channel(address) as channel:
        await Loops(StepwellClient(client, channel)).serve(__version__)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
