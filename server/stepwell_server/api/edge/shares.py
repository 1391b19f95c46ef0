"""Shares: how many messages of one principal are in work at once while others send as well.

The loop and its threads serve messages in the order in which they come. So a principal with a hundred messages in work
gets a hundred turns for one turn of another. While several principals send and the processor has no rest, each has one
message in work, and its other messages wait before they are parsed. While the processor has rest, messages in work wait
for the database and not for the processor. Then the limit doubles every moment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.sharing import Sharing

MOMENT = 0.02
"""Seconds between two looks at the processor."""
BUSY = 0.8
"""Part of the time. A process that works for longer has no rest: only one thread at a time runs Python. A process that
waits for a processor has none either."""
SWITCH = 0.0002
"""Seconds after which a thread gives the interpreter to another, while the server is shared and has no rest. A
transaction asks for the interpreter a dozen times. At other times such a short wait costs more than it brings."""

_WAITED = Path("/proc/self/schedstat")


@dataclass(slots=True)
class _Line:
    """The messages of one principal."""

    in_work: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turn:
    """The turn of a call, for one message after the other. Without shares, it is not counted."""

    def __init__(self, shares: Shares | None = None, name: str = "") -> None:
        self._shares = shares
        self._name = name
        self._holds: Shares | None = None

    async def take(self) -> None:
        """Wait until the next message may begin."""
        if self._shares is not None:
            await self._shares.take(self._name)
            self._holds = self._shares

    def drop(self) -> None:
        """End the turn of the message, if there is one."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.drop(self._name)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Leave the turn to others while the message only waits."""
        holds = self._holds
        self.drop()
        try:
            yield
        finally:
            if holds is not None:
                holds.go_on(self._name)
                self._holds = holds


class Shares:
    """Counts the messages in work. A principal that is alone pays for the counting only."""

    def __init__(
        self,
        tuning: Tuning = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = lambda: time.process_time() + _waited(),
    ) -> None:
        self._clock = clock
        self._worked = worked
        self._lines: dict[str, _Line] = {}
        self._sharing = Sharing(tuning.shared_for, clock)
        self._limit = 1
        self._looked_at = clock()
        self._worked_by_then = worked()
        self._patience = sys.getswitchinterval()

    async def take(self, name: str) -> None:
        """Wait until one more message of the principal may begin. Messages begin in the order in which they came."""
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
        """Count a message again that has rested."""
        self._lines.setdefault(name, _Line()).in_work += 1

    def drop(self, name: str) -> None:
        """Count a message out. The next one begins."""
        line = self._lines[name]
        line.in_work -= 1
        self._let_in(line)
        if not line.in_work:
            del self._lines[name]

    def _let_in(self, line: _Line) -> None:
        """Begin waiting messages, as far as there is room."""
        self._look()
        while line.waiting and self._has_room(line):
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                line.in_work += 1

    def _has_room(self, line: _Line) -> bool:
        return line.in_work < self._limit or not self._sharing.is_shared

    def _look(self) -> None:
        """See whether the processor had rest, and set limit and switch interval."""
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


def _waited() -> float:
    """Count the seconds for which the main thread, which is the loop's, waited for a processor. Linux alone knows."""
    try:
        return int(_WAITED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
