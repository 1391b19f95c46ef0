"""HookService, TransactionService and the clock in the words of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.errors import reason_name
from stepwell.v1 import clock_pb2
from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell.v1.common_pb2 import RetryPolicy
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served
from tests.support.workers.frames import payload, seconds


class Triggers:
    """Hooks of one namespace."""

    def __init__(self, channel: aio.Channel, namespace: str = "") -> None:
        self.stub: Any = HookServiceStub(channel)
        self.clock: Any = ClockServiceStub(channel)
        self.namespace = namespace

    async def trigger(self, hook_id: str = "", name: str = "note", **fields: Any) -> pb.Hook:
        """Store a hook that must be accepted."""
        (result,) = await self.trigger_many(item(hook_id, name, **fields))
        assert result.WhichOneof("result") == "hook", result.error
        return result.hook

    async def trigger_many(self, *items: pb.TriggerHooksItem) -> list[pb.TriggerHooksResult]:
        """Store a batch."""
        request = pb.TriggerHooksRequest(namespace=self.namespace, items=items)
        return list((await self.stub.TriggerHooks(request)).results)

    async def get(self, hook_id: str) -> pb.Hook:
        """Read a hook."""
        hook: pb.Hook = (await self.stub.GetHook(pb.GetHookRequest(namespace=self.namespace, hook_id=hook_id))).hook
        return hook

    async def status(self, hook_id: str) -> str:
        """Where a hook stands."""
        return status_of(await self.get(hook_id))

    async def until(self, hook_id: str, status: str) -> pb.Hook:
        """The hook, once it stands there."""
        async with asyncio.timeout(PATIENCE):
            while status_of(hook := await self.get(hook_id)) != status:
                await asyncio.sleep(0.01)
        return hook

    async def list(self, *statuses: str, **fields: Any) -> pb.ListHooksResponse:
        """One page of the hooks."""
        wanted = [pb.HookStatus.Value(f"HOOK_STATUS_{one}") for one in statuses]
        request = pb.ListHooksRequest(namespace=self.namespace, statuses=wanted, **fields)
        answer: pb.ListHooksResponse = await self.stub.ListHooks(request)
        return answer

    async def ids(self, *statuses: str, **fields: Any) -> list[str]:
        """The ids of one page."""
        return [one.hook_id for one in (await self.list(*statuses, **fields)).hooks]

    async def manage(self, verb: str, hook_id: str, **fields: Any) -> pb.Hook:
        """Retry or cancel a hook."""
        request = getattr(pb, f"{verb}HookRequest")(namespace=self.namespace, hook_id=hook_id, **fields)
        hook: pb.Hook = (await getattr(self.stub, f"{verb}Hook")(request)).hook
        return hook

    async def put(self, url: str, name: str = "note", **fields: Any) -> pb.PutHookTargetResponse:
        """Send the hooks of a name to a webhook."""
        request = pb.PutHookTargetRequest(namespace=self.namespace, name=name, url=url, **fields)
        answer: pb.PutHookTargetResponse = await self.stub.PutHookTarget(request)
        return answer

    async def targets(self) -> Mapping[str, pb.HookTarget]:
        """The targets of the namespace, by name."""
        page = await self.stub.ListHookTargets(pb.ListHookTargetsRequest(namespace=self.namespace))
        return {one.name: one for one in page.targets}

    async def delete_target(self, name: str = "note", **fields: Any) -> None:
        """Remove a target."""
        request = pb.DeleteHookTargetRequest(namespace=self.namespace, name=name, **fields)
        await self.stub.DeleteHookTarget(request)

    async def now(self) -> float:
        """What the clock says, in seconds."""
        return at((await self.clock.GetClock(clock_pb2.GetClockRequest())).now)

    async def advance(self, by: float) -> None:
        """Move a virtual clock."""
        await self.clock.AdvanceClock(clock_pb2.AdvanceClockRequest(by=seconds(by)))


def item(hook_id: str = "", name: str = "note", json: str = "", **fields: Any) -> pb.TriggerHooksItem:
    """A hook to store; `process_at` in seconds."""
    if json:
        fields["payload"] = payload(json)
    if "process_at" in fields:
        fields["process_at"] = instant(fields["process_at"])
    return pb.TriggerHooksItem(name=name, hook_id=hook_id, **fields)


def retry(max_attempts: int = 0, *, delay: float = 1.0, **fields: Any) -> RetryPolicy:
    """The policy of a hook."""
    policy = RetryPolicy(delay=seconds(delay), **fields)
    if max_attempts:
        policy.max_attempts = max_attempts
    return policy


def instant(moment: float) -> Timestamp:
    """An instant, given in seconds."""
    stamp = Timestamp()
    stamp.FromMicroseconds(round(moment * 1_000_000))
    return stamp


def at(stamp: Timestamp) -> float:
    """The instant in seconds."""
    return float(stamp.ToMicroseconds() / 1_000_000)


def status_of(hook: pb.Hook) -> str:
    """The name of a status, without its prefix."""
    return pb.HookStatus.Name(hook.status).removeprefix("HOOK_STATUS_")


def outcome_of(result: pb.TriggerHooksResult) -> str:
    """The id of the hook that was stored, or why it was refused."""
    if result.WhichOneof("result") == "hook":
        return result.hook.hook_id
    return reason_name(result.error.reason)


async def until_known(server: Served, *names: str, namespace: str = "default") -> None:
    """Return once the server knows that somebody wants the hooks of these names."""
    wanted = {Handler(namespace, TaskKind.HOOK, name) for name in names}
    async with asyncio.timeout(PATIENCE):
        while not wanted <= server.app.parts.replica.bus.registered:
            await asyncio.sleep(0.005)
