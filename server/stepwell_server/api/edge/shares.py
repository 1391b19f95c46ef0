"""Shares: how many messages of one principal are in work at once while others send as well.

The loop and its threads serve whatever is there in the order in which it came: who has a hundred messages in work has
a hundred turns for each turn of another. So while several principals send and the processor has no rest, each has one
message in work, and its other messages wait before they are parsed. As long as the processor rests, messages wait for
the database and not for it: then each has more in work, twice as many every moment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stepwell_server.engine.spine.sharing import Sharing

MOMENT = 0.02
"""Seconds after which the limit is looked at again."""
BUSY = 0.8
"""Of the time, for which a process is at work that has no rest: only one of its threads at a time runs Python."""
SWITCH = 0.0002
"""Seconds after which a thread leaves the interpreter to another, while the server is shared and has no rest. A
transaction that is in the way of all asks for it a dozen times. At other times it costs more than it brings."""


@dataclass(slots=True)
class _Line:
    """The messages of one principal."""

    in_work: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turn:
    """The turn of a call: one message of it after the other takes it. Without shares, nobody counts it."""

    def __init__(self, shares: Shares | None = None, name: str = "") -> None:
        self._shares = shares
        self._name = name
        self._holds: Shares | None = None

    async def take(self) -> None:
        """Wait until a message may be worked on."""
        if self._shares is not None:
            await self._shares.take(self._name)
            self._holds = self._shares

    def drop(self) -> None:
        """The message is done, if there was one."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.drop(self._name)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Leave the turn to others, while the message waits for something that takes no work."""
        holds = self._holds
        self.drop()
        try:
            yield
        finally:
            if holds is not None:
                holds.go_on(self._name)
                self._holds = holds


class Shares:
    """Counts the messages in work. What it costs while only one principal sends is that counting."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._worked = worked
        self._lines: dict[str, _Line] = {}
        self._sharing = Sharing(clock)
        self._limit = 1
        self._looked_at = clock()
        self._worked_by_then = worked()
        self._patience = sys.getswitchinterval()

    async def take(self, name: str) -> None:
        """Wait until one more message of the principal may be worked on. They begin in the order in which they came."""
        self._sharing.note(name)
        line = self._lines.setdefault(name, _Line())
        self._let_in(line)
        if not line.waiting and self._has_room(line):
            line.in_work += 1
            return
        line.waiting.append(turn := asyncio.get_running_loop().create_future())
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come
                self.drop(name)
            raise

    def go_on(self, name: str) -> None:
        """Count a message in that was in work before."""
        self._lines.setdefault(name, _Line()).in_work += 1

    def drop(self, name: str) -> None:
        """Count a message out. The next one begins."""
        line = self._lines[name]
        line.in_work -= 1
        self._let_in(line)
        if not line.in_work:
            del self._lines[name]

    def _let_in(self, line: _Line) -> None:
        """Begin with those that wait, as far as there is room."""
        self._look()
        while line.waiting and self._has_room(line):
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                line.in_work += 1

    def _has_room(self, line: _Line) -> bool:
        return line.in_work < self._limit or not self._sharing.is_shared

    def _look(self) -> None:
        """See whether the processor had rest of late."""
        now = self._clock()
        passed = now - self._looked_at
        if passed < MOMENT:
            return
        worked = self._worked()
        had_rest = worked - self._worked_by_then < BUSY * passed
        self._looked_at, self._worked_by_then = now, worked
        if had_rest and any(line.waiting for line in self._lines.values()):
            self._limit *= 2
        elif not had_rest:
            self._limit = max(1, self._limit // 2)
        sys.setswitchinterval(SWITCH if self._sharing.is_shared and not had_rest else self._patience)
