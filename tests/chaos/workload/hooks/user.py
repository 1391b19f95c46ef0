"""The client of hooks in a chaos run: triggers them, follows every server's wakes, and asks for the next one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.payloads import to_payload
from stepwell.v1 import dispatchers_pb2, hooks_pb2
from stepwell.v1.common_pb2 import BACKOFF_CONSTANT, RetryPolicy
from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.wakes import Told
from tests.chaos.workload.calls import Caller
from tests.chaos.workload.workflows.load import HOOK_ATTEMPTS, NAMESPACE, HookOrder

NAME = "note"
ASK_EVERY = 0.5
RECONNECT = 0.2


@dataclass
class HookDriver:
    """Brings hooks in, and looks at wakes until it is told to stop."""

    batches: Sequence[Sequence[HookOrder]]
    caller: Caller
    recorder: Recorder
    rng: random.Random

    def __post_init__(self) -> None:
        self._streams = count()

    async def trigger_all(self, began: float) -> None:
        """Trigger every batch when it arrives, until each hook of it is known to be stored."""
        await asyncio.gather(*(self._trigger(batch, began) for batch in self.batches))

    async def _trigger(self, batch: Sequence[HookOrder], began: float) -> None:
        await asyncio.sleep(began + batch[0].arrive - asyncio.get_running_loop().time())
        left = [_item(order, time.time()) for order in batch]
        while left:
            request = hooks_pb2.TriggerHooksRequest(namespace=NAMESPACE, items=left)
            asked = {"hooks": [item.hook_id for item in left]}
            reply = await self.caller.surely(
                "trigger", "", lambda stub, request=request: stub.TriggerHooks(request), asked, uuid4().hex
            )
            stored = {one.hook.hook_id for one in reply.results if one.HasField("hook")}
            left = [item for item in left if item.hook_id not in stored]

    async def ask(self) -> None:
        """Ask some server for the next wake, again and again."""
        request = dispatchers_pb2.GetNextWakeRequest(namespace=NAMESPACE)
        while True:
            await self.caller.once("next_wake", "", lambda stub: stub.GetNextWake(request))
            await asyncio.sleep(self.rng.uniform(0, 2 * ASK_EVERY))

    async def follow(self, server: str) -> None:
        """Follow a server's wakes, again whenever the stream has ended."""
        while True:
            stream = f"{server}-{next(self._streams)}"
            call = self.caller.services(server).WakeStream(dispatchers_pb2.WakeStreamRequest(namespace=NAMESPACE))
            try:
                async for said in call:
                    wake = said.next_wake
                    at = wake.wake_at.ToMicroseconds() if wake.HasField("wake_at") else None
                    self.recorder.record(Told(stream, server, "told", now_ns(), wake.number, at))
            except aio.AioRpcError:
                pass
            finally:
                call.cancel()
                self.recorder.record(Told(stream, server, "over", now_ns()))
            await asyncio.sleep(RECONNECT)


def _item(order: HookOrder, now: float) -> Any:
    retry = RetryPolicy(max_attempts=HOOK_ATTEMPTS, backoff=BACKOFF_CONSTANT)
    retry.delay.FromMilliseconds(200)
    item = hooks_pb2.TriggerHooksItem(
        name=NAME,
        hook_id=order.id,
        payload=to_payload({"failures": order.failures}),
        retry=retry,
        request_id=uuid4().hex,
    )
    if order.after is not None:
        item.process_at.CopyFrom(_stamp(now + order.after))
    return item


def _stamp(moment: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(round(moment * 1_000_000))
    return stamp
