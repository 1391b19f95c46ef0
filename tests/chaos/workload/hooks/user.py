"""The user of hooks in a chaos run: triggers them, follows every server's wakes, and asks for the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.payloads import to_payload
from stepwell.v1 import dispatchers_pb2, hooks_pb2
from stepwell.v1.common_pb2 import BACKOFF_CONSTANT, RetryPolicy
from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.wakes import Told
from tests.chaos.site.names import NAMESPACE
from tests.chaos.workload.hooks.load import ATTEMPTS, NOTE, HookOrder, Hooks
from tests.chaos.workload.primitive import Desk

ASK_EVERY = 0.5
RECONNECT = 0.2


class HookUser:
    """Brings hooks in, and looks at wakes until it is told to stop."""

    def __init__(self, load: Hooks, desk: Desk) -> None:
        self.rng, self.recorder, self.caller, self.began = desk.rng, desk.recorder, desk.caller, desk.began
        self.batches = load.drawn(desk.seed)
        self._streams = count()

    async def bring(self) -> None:
        """Trigger every batch when it arrives, until each hook of it is known to be stored."""
        await asyncio.gather(*(self._trigger(batch) for batch in self.batches))

    def looks(self) -> list[Coroutine[Any, Any, None]]:
        """Every server's wakes, followed and asked for."""
        return [self._ask(), *(self._follow(server) for server in self.caller.servers)]

    async def tail(self) -> None:
        """It asks all the time."""

    async def _trigger(self, batch: Sequence[HookOrder]) -> None:
        await asyncio.sleep(self.began + batch[0].arrive - asyncio.get_running_loop().time())
        left = [_item(order, time.time()) for order in batch]
        while left:
            request = hooks_pb2.TriggerHooksRequest(namespace=NAMESPACE, items=left)
            asked = {"hooks": [item.hook_id for item in left]}
            reply = await self.caller.surely(
                "trigger", "", lambda stub, request=request: stub.TriggerHooks(request), asked, uuid4().hex
            )
            stored = {one.hook.hook_id for one in reply.results if one.HasField("hook")}
            left = [item for item in left if item.hook_id not in stored]

    async def _ask(self) -> None:
        """Ask some server for the next wake, again and again."""
        request = dispatchers_pb2.GetNextWakeRequest(namespace=NAMESPACE)
        while True:
            await self.caller.once("next_wake", "", lambda stub: stub.GetNextWake(request))
            await asyncio.sleep(self.rng.uniform(0, 2 * ASK_EVERY))

    async def _follow(self, server: str) -> None:
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
    retry = RetryPolicy(max_attempts=ATTEMPTS, backoff=BACKOFF_CONSTANT)
    retry.delay.FromMilliseconds(200)
    item = hooks_pb2.TriggerHooksItem(
        name=NOTE,
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
