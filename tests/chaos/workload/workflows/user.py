"""The user of workflows in a chaos run: creates orders, approves them, meddles with some, and watches all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import uuid4

from stepwell import CallFailed, Client, Instance, InstanceChange
from stepwell.payloads import to_payload
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.chaos.facts.calls import Call
from tests.chaos.facts.fact import key_of, now_ns
from tests.chaos.facts.run import Count
from tests.chaos.facts.workflows import Scan, Seen
from tests.chaos.site.names import NAMESPACE
from tests.chaos.workload.calls import Ask
from tests.chaos.workload.primitive import Desk
from tests.chaos.workload.workflows.load import CHILD, POISON, SLEEPER, Order, Orders, parcel

SCAN_EVERY = 3.0
SCAN_PAGE = 10
"""Instances of a page: so few that even short runs have many pages."""
PASSING = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}
"""What a call may fail with while something is broken."""
AFTER_LAST = 5.0
"""Seconds after the last arrival at which all naps end that end at one instant."""
SHOT_SECONDS = 0.008
"""Between two events that are aimed at one deadline."""
TAIL = 25
"""Questions to every server after the heal, all of which must be answered, and so must a create."""
TAIL_TRIES = 5


class OrderUser:
    """Brings every order to its end."""

    def __init__(self, load: Orders, desk: Desk) -> None:
        self.desk = desk
        self.rng, self.recorder, self.caller, self.clients = desk.rng, desk.recorder, desk.caller, desk.clients
        self.rivals, self.shots = load.rivals, load.shots
        instant = {"nap_until_ms": round((time.time() + load.seconds + AFTER_LAST) * 1000)}
        self.instant = instant if load.same_instant else {}
        self.orders = load.drawn(desk.seed)
        self.latency = 0.005
        """Seconds from sending an event to its stamp, as of late."""
        self.watches, self.refusals = count(), count()

    async def bring(self) -> None:
        """All orders, from arrival to end."""
        await asyncio.gather(*(self._order(order) for order in self.orders))

    def looks(self) -> list[Coroutine[Any, Any, None]]:
        """Scans of each namespace."""
        return [self._scan(client) for client in self.clients.values()]

    # ---- one order

    async def _order(self, order: Order) -> None:
        await asyncio.sleep(self.desk.began + order.arrive - asyncio.get_running_loop().time())
        await self._create(order)
        handle: Instance[Any] = Instance(self.clients[order.namespace], order.workflow, order.id)
        if order.workflow == POISON:
            await self._watch(handle, order.key)
            return
        if order.workflow == SLEEPER:
            await self._approve(handle, order)
            return
        await asyncio.gather(self._watch(handle, order.key), self._approve(handle, order), self._meddle(handle, order))
        if order.late:
            await self._send(order, order.approval | {"late": True})

    async def _create(self, order: Order) -> None:
        """Create it, perhaps twice at once with one request id, perhaps against rivals with ids of their own."""
        request_ids = [uuid4().hex] * (2 if order.twice else 1) + [uuid4().hex for _ in range(self.rivals)]
        await asyncio.gather(*(self._create_as(order, request_id) for request_id in request_ids))

    async def _create_as(self, order: Order, request_id: str) -> None:
        params = order.params | self.instant
        request = pb.CreateInstanceRequest(
            namespace=order.namespace,
            workflow=order.workflow,
            instance_id=order.id,
            params=to_payload(params),
            request_id=request_id,
        )
        await self.caller.surely("create", order.key, lambda stub: stub.CreateInstance(request), params, request_id)

    async def _approve(self, handle: Instance[Any], order: Order) -> None:
        if not order.aimed:
            await asyncio.sleep(order.approve_after)
            await self._send(order, order.approval)
        elif await self._aim(handle, order):
            await asyncio.gather(*(self._shoot(order, shot) for shot in range(self.shots)))

    async def _shoot(self, order: Order, shot: int) -> None:
        await asyncio.sleep(shot * SHOT_SECONDS)
        await self._send(order, order.approval | {"shot": shot})

    async def _send(self, order: Order, payload: dict[str, Any]) -> None:
        request = pb.SendEventRequest(
            namespace=order.namespace,
            workflow=order.workflow,
            instance_id=order.id,
            type="approval",
            payload=to_payload(payload),
            request_id=uuid4().hex,
        )
        value = {"type": "approval", "payload": request.payload.json}
        sent_at = time.time()
        reply = await self.caller.surely(
            "event", order.key, lambda stub: stub.SendEvent(request), value, request.request_id
        )
        if reply is not None:
            took = reply.event.created_at.ToMicroseconds() / 1e6 - sent_at
            if 0 < took < 0.2:
                self.latency += 0.1 * (took - self.latency)

    async def _aim(self, handle: Instance[Any], order: Order) -> bool:
        """Wait until the event, sent now, is stamped about when the wait is over. False: there is no wait any more."""
        with suppress(CallFailed):  # the other watch puts it on record
            async for change in handle.watch(steps=True):
                for step in change.steps:
                    if step.name == "approval" and step.wake_at is not None:
                        lead = self.latency + SHOT_SECONDS * (self.shots - 1) / 2
                        at = step.wake_at.timestamp() + order.approve_after / 1000 - lead
                        await asyncio.sleep(min(at - time.time(), order.wait))
                        return True
        return False

    async def _meddle(self, handle: Instance[Any], order: Order) -> None:
        if not order.lifecycle:
            return
        await asyncio.sleep(order.lifecycle_after)
        await self._manage(order.lifecycle, order)
        if order.lifecycle == "pause":
            await asyncio.sleep(self.rng.uniform(0, 2))
            await self._manage("resume", order)
        elif order.lifecycle == "restart":
            await self._watch(handle, order.key)

    async def _manage(self, op: str, order: Order) -> None:
        verb = f"{op.capitalize()}Instance"
        request_id = uuid4().hex
        named = {"namespace": order.namespace, "workflow": order.workflow, "instance_id": order.id}
        request = getattr(pb, f"{verb}Request")(**named, request_id=request_id)
        await self.caller.surely(op, order.key, lambda stub: getattr(stub, verb)(request), {}, request_id)

    # ---- reading

    async def _watch(self, handle: Instance[Any], key: str) -> None:
        """Follow it to its end. If that is refused, a plain question puts the refusal on record."""
        stream = f"watch-{next(self.watches)}"
        try:
            async for change in handle.watch():
                self._seen(stream, key, change)
                if self.rng.random() < 0.2:
                    await self._get(key)
        except CallFailed:
            await self._get(key)
        else:
            self.recorder.record(Count("watches", 1))

    def _seen(self, stream: str, key: str, change: InstanceChange[Any]) -> None:
        seen = change.instance
        about = (_spelled(seen.status), seen.run_number, seen.revision, now_ns())
        self.recorder.record(Seen("driver", stream, key, *about))

    async def _get(self, key: str, server: str = "") -> None:
        namespace, workflow, instance_id = key.split("/")
        request = pb.GetInstanceRequest(namespace=namespace, workflow=workflow, instance_id=instance_id)
        ask: Ask = lambda stub: stub.GetInstance(request)  # noqa: E731
        if server:
            await self.caller.once("get", key, ask, server=server)
        else:
            await self.caller.surely("get", key, ask)

    async def _scan(self, client: Client) -> None:
        """Page through everything of a namespace, again and again, while it changes."""
        workflow = self.orders[0].workflow
        while True:
            await asyncio.sleep(SCAN_EVERY)
            invoked = now_ns()
            try:
                keys = [key async for key in _pages(client, workflow)]
            except CallFailed as failure:
                self._no_page(failure)
                continue
            self.recorder.record(Scan("driver", client.namespace, workflow, keys, invoked, now_ns()), Count("scans", 1))

    def _no_page(self, failure: CallFailed) -> None:
        """Write a refusal down. A page that only never came says nothing about the scan."""
        if failure.code.name not in PASSING:
            told = {"code": failure.code.name, "reason": failure.reason}
            name = f"scan-{next(self.refusals)}"
            self.recorder.record(Call(name, "list", "", "fail", now_ns(), "driver", **told))

    # ---- the end

    async def tail(self) -> None:
        """Ask every server, then have each store something, and see that it is executed."""
        for server in self.caller.servers:
            for _ in range(TAIL):
                await self._get(self.rng.choice(self.orders).key, server)
        await asyncio.gather(*(self._last_parcel(server) for server in self.caller.servers))

    async def _last_parcel(self, server: str) -> None:
        """A parcel of nobody's order. No other server is asked; this one again, as its store may stumble to the end."""
        request = pb.CreateInstanceRequest(
            namespace=NAMESPACE,
            workflow=CHILD,
            instance_id=f"last-of-{server}",
            params=to_payload({}),
            request_id=uuid4().hex,
        )
        program = parcel(request.instance_id)
        self.recorder.record(program)
        ask: Ask = lambda stub: stub.CreateInstance(request)  # noqa: E731
        for _ in range(TAIL_TRIES):
            known, _ = await self.caller.once("create", program.key, ask, {}, request.request_id, server)
            if known:
                await self._watch(Instance(self.clients[NAMESPACE], CHILD, request.instance_id), program.key)
                return


async def _pages(client: Client, workflow: str) -> AsyncIterator[str]:
    """The keys of all instances, page by page."""
    request = pb.ListInstancesRequest(namespace=client.namespace, workflow=workflow, page_size=SCAN_PAGE)
    while True:
        page = await client.call(client.stub(WorkflowServiceStub).ListInstances, request)
        for one in page.instances:
            yield key_of(one.namespace, one.workflow, one.instance_id)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _spelled(status: str) -> str:
    """A status of the SDK as the schema spells it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in str(status))
