"""What a chaos run must know of a primitive to use it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message
from grpc import aio

from stepwell import Client
from tests.chaos.facts.fact import Fact
from tests.chaos.facts.records import Recorder
from tests.chaos.workload.calls import Answer, Caller
from tests.chaos.workload.load import Load


@dataclass(frozen=True, slots=True)
class Desk:
    """What all users of the run share."""

    seed: int
    rng: random.Random
    recorder: Recorder
    caller: Caller
    clients: Mapping[str, Client]
    """By namespace."""
    began: float
    """By the loop's clock."""


class User(Protocol):
    """The one who has work of a primitive done, and looks at what becomes of it."""

    async def bring(self) -> None:
        """Everything, from its arrival to its end."""

    def looks(self) -> list[Coroutine[Any, Any, None]]:
        """What is looked at all the time."""

    async def tail(self) -> None:
        """The last questions, which show that all servers answer again and work is done."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive: its load, its user, its handlers, its calls, and what is there of it in the end."""

    load: type[Load]
    user: Callable[[Any, Desk], User]
    handlers: Mapping[str, Sequence[Any]]
    """Of workers, by the argument of `App` that takes them."""
    stubs: Sequence[Callable[[aio.Channel], Any]]
    answers: Mapping[type[Message], Callable[[Any], Answer]]
    """What an answer says, and the revision that it names, by its type."""
    snapshot: Callable[[str, str], Awaitable[list[Fact]]]
    """What a server and a database have of it, by their addresses."""
