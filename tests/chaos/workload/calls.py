"""Calls of a client in a chaos run: each is written down, and repeated until it is answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from google.protobuf.message import Message
from grpc import aio

from stepwell.errors import failure_of
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
Answer: TypeAlias = tuple[Row, int | None]
"""What an answer says, and the revision that it names."""


@dataclass
class Caller:
    """Makes calls, one by one written down, until each is answered."""

    servers: dict[str, str]
    recorder: Recorder
    rng: random.Random
    stubs: Sequence[Callable[[aio.Channel], Any]]
    """Of all services that are called."""
    answers: Mapping[type[Message], Callable[[Any], Answer]]
    """What their answers say, by type."""
    hasty: float = 0.0
    waits: bool = False
    """Calls wait for a connection: one that was lost is made again only after a pause."""
    process: str = "driver"
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        channels = {name: aio.insecure_channel(address, options=_OPTIONS) for name, address in self.servers.items()}
        self._services = {name: Services([stub(channel) for stub in self.stubs]) for name, channel in channels.items()}

    def services(self, server: str) -> Any:
        """The methods of one server."""
        return self._services[server]

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
        server = server or self.rng.choice(list(self._services))
        about: dict[str, Any] = {"call": f"{self.process}-{next(self._numbers)}", "op": op, "key": key}
        about |= {"process": self.process, "request_id": request_id, "server": server}
        self.recorder.record(Call(**about, phase="invoke", mono_ns=now_ns(), value=value or {}))
        try:
            async with asyncio.timeout(seconds + 1):
                reply = await ask(_Timed(self._services[server], seconds, self.waits))
        except aio.AioRpcError as error:
            failure = failure_of(error)
            phase: Any = "fail" if failure.code.name in REFUSED else "info"
            told = {"code": failure.code.name, "reason": failure.reason}
            self.recorder.record(Call(**about, phase=phase, mono_ns=now_ns(), **told))
            return phase == "fail", None
        except TimeoutError:
            self.recorder.record(Call(**about, phase="info", mono_ns=now_ns(), code="DEADLINE_EXCEEDED"))
            return False, None
        answered, revision = self.answers[type(reply)](reply)
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

    def __init__(self, stubs: Sequence[Any]) -> None:
        self._stubs = stubs

    def __getattr__(self, method: str) -> Any:
        return next(getattr(stub, method) for stub in self._stubs if hasattr(stub, method))
