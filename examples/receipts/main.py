"""An order and its receipt in one transaction: both are stored, or neither is.

python examples/receipts/main.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from stepwell import (
    App,
    Client,
    JobContext,
    Retry,
    TransactionRefused,
    Worker,
    WorkflowEvent,
    WorkflowStep,
    hook,
    workflow,
)


@dataclass
class Receipt:
    order: str
    cents: int


sent: asyncio.Queue[str] = asyncio.Queue()
delivered: set[str] = set()  # in life: a table of the receiver's, written together with what it does


@workflow("shipment")
async def shipment(event: WorkflowEvent[Any], step: WorkflowStep) -> str:
    """Ship what was ordered."""
    return await step.do("ship", lambda: f"shipped {event.instance_id}")


@hook("send-receipt", retry=Retry(max_attempts=8, delay="5 seconds"))
async def send_receipt(receipt: Receipt, ctx: JobContext) -> None:
    """Send a receipt by mail. What it raises has it executed again, later, with the same key."""
    if ctx.idempotency_key not in delivered:  # at least once: a repetition must change nothing
        delivered.add(ctx.idempotency_key)
        sent.put_nowait(f"sent a receipt of {receipt.cents} cents")


app = App(workflows=[shipment], hooks=[send_receipt])


async def order(client: Client, id: str, cents: int) -> str:
    """Ship and send a receipt: one without the other never happens."""
    async with client.transaction() as tx:
        shipping = tx.workflow(shipment).create(id=id)
        tx.hook(send_receipt).trigger(Receipt(id, cents), id=f"receipt-{id}")
    return await shipping.result(timeout="30 seconds")


async def main(server: str) -> None:
    id = uuid4().hex
    async with Client(server) as client, Worker(client, app):
        print((await order(client, id, 4200)).replace(id, "the order"))
        print(await asyncio.wait_for(sent.get(), 30))
        try:
            await order(client, id, 4200)
        except TransactionRefused as refused:
            print(f"refused: operation {refused.operation}, {refused.reason}")
        hooks = [state async for state in client.hook(send_receipt).list() if state.id == f"receipt-{id}"]
        print(f"{len(hooks)} receipt")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7350"))
