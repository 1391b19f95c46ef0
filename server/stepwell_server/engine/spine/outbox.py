"""The outbox of a worker's stream, with a bound: beyond it the stream is not read and gets no more tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.values.tuning import DEFAULT
from stepwell_server.engine.spine.assignments import Assignment

_SMALL = 100


@dataclass(frozen=True, slots=True)
class State:
    """All that a worker must know of a task that it holds, because the worker has asked for it."""

    assignment: Assignment

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return self.assignment.size


@dataclass(frozen=True, slots=True)
class Told:
    """News of a task for the worker that holds it."""

    held: Held
    news: News

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return _SMALL + self.news.size


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat of the server: it says which of the worker's is durable."""

    size: int = _SMALL


@dataclass(frozen=True, slots=True)
class Refused:
    """A frame about the stream itself was refused."""

    refusal: StepwellError
    size: int = 3 * _SMALL


@dataclass(frozen=True, slots=True)
class Draining:
    """The replica goes away."""

    size: int = _SMALL


Message: TypeAlias = Assignment | State | Told | Beat | Refused | Draining


@dataclass(slots=True, eq=False)
class Outbox:
    """Messages that wait to be written, the oldest first."""

    most_bytes: int
    part_messages: int = DEFAULT.part_messages
    """Most messages that are taken out at once, and made ready for the wire in one turn."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """There is something to take, or to look at."""
    size: int = 0
    """Bytes that wait, or are being written."""
    _messages: deque[Message] = field(default_factory=deque)
    _being_written: int = 0
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._has_room.set()

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether as much waits as may."""
        return self.size >= self.most_bytes

    def written(self) -> None:
        """Note that the messages that were taken are written, and count no longer."""
        self.size -= self._being_written
        self._being_written = 0
        if not self.is_full:
            self._has_room.set()

    async def room(self) -> None:
        """Wait until there is room."""
        await self._has_room.wait()

    def put(self, message: Message) -> None:
        """Add a message, also to a full outbox: the sources of messages stop by themselves."""
        self._messages.append(message)
        self.size += message.size
        self.ready.set()
        if self.is_full:
            self._has_room.clear()

    def take(self) -> list[Message]:
        """The next part of what waits. It counts until it is written."""
        part: list[Message] = []
        size = 0
        while self._messages and len(part) < self.part_messages and size < PART_BYTES:
            part.append(message := self._messages.popleft())
            size += message.size
        self._being_written = size
        if self._messages:
            self.ready.set()
        return part
