"""An order that waits for an approval: a workflow, its worker and its client in one program.

python examples/orders/main.py [HOST:PORT]

Or with the worker apart: `stepwell worker main:app` in this folder, and then, from another terminal,

stepwell workflow create order --id first --params '{"sku": 7}'
stepwell workflow send-event order first approval --payload '{"approved": true}'
stepwell workflow watch order first
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from stepwell import App, Client, Retry, Worker, WorkflowEntrypoint, WorkflowEvent, WorkflowStep


@dataclass
class OrderParams:
    sku: int


class Order(WorkflowEntrypoint[OrderParams, dict[str, Any]]):
    """An order that waits for an approval."""

    name = "order"

    async def run(self, event: WorkflowEvent[OrderParams], step: WorkflowStep) -> dict[str, Any]:
        config = await step.do("fetch config", lambda: {"enabled": True})
        await step.sleep("wait a bit", "2 seconds")
        approval = await step.wait_for_event("await approval", type="approval", timeout="24 hours")

        @step.do("finish", retries=Retry(limit=5, delay="10 seconds", backoff="exponential"), timeout="10 minutes")
        async def finish() -> dict[str, Any]:
            return {"sku": event.payload.sku, "config": config, "approved": approval.payload["approved"]}

        return await finish()


app = App(workflows=[Order])


async def main(server: str) -> None:
    async with Client(server) as client, Worker(client, app):
        order = await client.workflow(Order).create(params=OrderParams(sku=7))
        await order.send_event("approval", {"approved": True})
        print(await order.result(timeout="30 seconds"), (await order.status()).status)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7350"))
