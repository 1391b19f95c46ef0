"""Calls of a client in a chaos run: each is written down, and repeated until it is answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from google.protobuf.message import Message
from grpc import aio

from stepwell.errors import failure_of
from stepwell.v1 import dispatchers_pb2, hooks_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.chaos.facts.calls import Call
from tests.chaos.facts.fact import Row, now_ns
from tests.chaos.facts.records import Recorder

REFUSED = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION"}
"""Codes after which a call was certainly not applied."""
CALL_SECONDS = 5.0
LONGEST_PAUSE = 1.0

_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 100),
]

Ask: TypeAlias = Callable[[Any], Awaitable[Any]]


def answer_of(reply: Message) -> tuple[Row, int | None]:
    """What an answer says, and the revision that it names."""
    if isinstance(reply, pb.SendEventResponse):
        event = reply.event
        return {"event_id": event.event_id, "created_at": event.created_at.ToMicroseconds()}, None
    if isinstance(reply, hooks_pb2.TriggerHooksResponse):
        stored = [one.hook for one in reply.results if one.HasField("hook")]
        return {"hooks": {one.hook_id: one.created_at.ToMicroseconds() for one in stored}}, None
    if isinstance(reply, dispatchers_pb2.GetNextWakeResponse):
        wake = reply.next_wake
        at = wake.wake_at.ToMicroseconds() if wake.HasField("wake_at") else None
        return {"wake_at": at, "now": reply.now.ToMicroseconds()}, None
    instance = reply.instance  # type: ignore[attr-defined]
    return {
        "status": pb.InstanceStatus.Name(instance.status).removeprefix("INSTANCE_STATUS_").lower(),
        "run_number": instance.run_number,
        "created_at": instance.created_at.ToMicroseconds(),
    }, instance.revision


@dataclass
class Caller:
    """Makes calls, one by one written down, until each is answered."""

    servers: dict[str, str]
    recorder: Recorder
    rng: random.Random
    hasty: float = 0.0
    waits: bool = False
    """Calls wait for a connection: one that was lost is made again only after a pause."""
    process: str = "driver"
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._stubs = {
            name: Services(aio.insecure_channel(address, options=_OPTIONS)) for name, address in self.servers.items()
        }

    def services(self, server: str) -> Any:
        """The methods of one server."""
        return self._stubs[server]

    async def surely(self, op: str, key: str, ask: Ask, value: Row | None = None, request_id: str = "") -> Any:
        """Call until it is answered. None: it was refused."""
        pause, is_hasty = 0.05, self.rng.random() < self.hasty
        while True:
            seconds = self.rng.uniform(0, 0.03) if is_hasty else CALL_SECONDS
            is_hasty = False
            known, reply = await self.once(op, key, ask, value, request_id, seconds=seconds)
            if known:
                return reply
            await asyncio.sleep(self.rng.uniform(0, pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def once(
        self,
        op: str,
        key: str,
        ask: Ask,
        value: Row | None = None,
        request_id: str = "",
        server: str = "",
        seconds: float = CALL_SECONDS,
    ) -> tuple[bool, Any]:
        """Call once. Whether its outcome is known, and its answer unless it was refused."""
        server = server or self.rng.choice(list(self._stubs))
        about: dict[str, Any] = {"call": f"{self.process}-{next(self._numbers)}", "op": op, "key": key}
        about |= {"process": self.process, "request_id": request_id, "server": server}
        self.recorder.record(Call(**about, phase="invoke", mono_ns=now_ns(), value=value or {}))
        try:
            async with asyncio.timeout(seconds + 1):
                reply = await ask(_Timed(self._stubs[server], seconds, self.waits))
        except aio.AioRpcError as error:
            failure = failure_of(error)
            phase: Any = "fail" if failure.code.name in REFUSED else "info"
            told = {"code": failure.code.name, "reason": failure.reason}
            self.recorder.record(Call(**about, phase=phase, mono_ns=now_ns(), **told))
            return phase == "fail", None
        except TimeoutError:
            self.recorder.record(Call(**about, phase="info", mono_ns=now_ns(), code="DEADLINE_EXCEEDED"))
            return False, None
        answered, revision = answer_of(reply)
        self.recorder.record(Call(**about, phase="ok", mono_ns=now_ns(), value=answered, revision=revision))
        return True, reply


@dataclass(frozen=True)
class _Timed:
    """A stub whose calls have a deadline, and wait for a connection until then or fail at once without one."""

    stub: Any
    seconds: float
    waits: bool

    def __getattr__(self, method: str) -> Callable[[Message], Awaitable[Any]]:
        call = getattr(self.stub, method)
        return lambda request: call(request, timeout=self.seconds, wait_for_ready=self.waits)


class Services:
    """The methods of all services of a server."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stubs = [kind(channel) for kind in (WorkflowServiceStub, HookServiceStub, DispatcherServiceStub)]

    def __getattr__(self, method: str) -> Any:
        return next(getattr(stub, method) for stub in self._stubs if hasattr(stub, method))
