"""The inbox of the committer: calls that wait, each behind the earlier ones of its own sender.

Namespaces take turns, and within a namespace its senders do, call by call: however much one of them sends, the next
call of another waits for its turn and not for all of that. A call counts by the items that it brings. A full inbox has
room for whoever has little in it, at the cost of whoever has most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from stepwell_server.domain.values.errors import ServerBusy
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.books import HotCall


class Sender(NamedTuple):
    """Whose call it is: of a session, or of a principal without one, in a namespace."""

    namespace: str
    name: str


SERVER = Sender("", "")
"""The server itself."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A call on its way, and whoever waits for its answer."""

    call: HotCall
    sender: Sender
    answer: asyncio.Future[Any]
    passed_over: int = 0
    arrived: float = field(default_factory=perf_counter)
    size: int = 0
    """About how many bytes the call brings: it is asked for often, and looks through all of them."""

    def __post_init__(self) -> None:
        self.size = self.call.size

    def settle(self, answer: Any) -> None:
        """Give the answer or the refusal, if anybody still waits for it. What was committed stays committed."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
            self.answer.exception()  # whoever cares hears of it; that nobody is left to do so is no error of ours
        else:
            self.answer.set_result(answer)


@dataclass(slots=True, eq=False)
class _Load:
    """Calls that wait: how many items, and about how many bytes."""

    name: str
    count: int = 0
    size: int = 0

    def add(self, count: int, size: int) -> None:
        """Count calls in, or out."""
        self.count += count
        self.size += size


@dataclass(slots=True, eq=False)
class _Line(_Load):
    """The calls of one sender, the oldest first."""

    calls: deque[Waiting] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Tenant(_Load):
    """The lines of one namespace. Whose turn it is comes first."""

    lines: dict[str, _Line] = field(default_factory=dict)
    turns: deque[_Line] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Inbox(_Load):
    """Calls that wait for the committer. Whose turn it is comes first."""

    name: str = ""
    tuning: Tuning = DEFAULT
    tenants: dict[str, _Tenant] = field(default_factory=dict)
    turns: deque[_Tenant] = field(default_factory=deque)

    def __len__(self) -> int:
        return self.count

    def put(self, waiting: Waiting) -> None:
        """Take a call in. Raises `ServerBusy` if there is no room and its sender is the one that has most in here."""
        self._line_for(waiting).calls.append(waiting)
        while self.count > self.tuning.inbox_items or self.size > self.tuning.inbox_bytes:
            busy = ServerBusy("more is waiting to be committed than the server takes", retry_after=0.1)
            newest = self._newest_of_most(waiting.sender)
            if newest is waiting:
                raise busy
            newest.settle(busy)

    def put_back(self, taken: Iterable[Waiting]) -> None:
        """Put calls that were taken, in this order, back before all others of their senders."""
        for waiting in reversed([*taken]):
            self._line_for(waiting).calls.appendleft(waiting)

    @property
    def next(self) -> Waiting:
        """The oldest call of the sender whose turn it is. It stays here."""
        return self.turns[0].turns[0].calls[0]

    def turn_to_others(self, spent: Set[str]) -> bool:
        """Let the next turn be a namespace's that is none of these. False: no other has a call in here."""
        for _ in self.tenants:
            if self.turns[0].name not in spent:
                return True
            self.turns.rotate(-1)
        return False

    def take(self) -> Waiting:
        """The oldest call of the sender whose turn it is."""
        tenant = self.turns.popleft()
        line = tenant.turns.popleft()
        waiting = line.calls.popleft()
        self._count_out(tenant, line, waiting)
        if line.calls:
            tenant.turns.append(line)
        if tenant.count:
            self.turns.append(tenant)
        return waiting

    def empty(self) -> list[Waiting]:
        """Take them all."""
        taken = []
        while self.count:
            taken.append(self.take())
        return taken

    def _line_for(self, waiting: Waiting) -> _Line:
        """The line that the call belongs to, with the call counted; who had nothing in here has its turn last."""
        namespace, name = waiting.sender
        tenant = self.tenants.get(namespace)
        if tenant is None:
            tenant = self.tenants[namespace] = _Tenant(namespace)
            self.turns.append(tenant)
        line = tenant.lines.get(name)
        if line is None:
            line = tenant.lines[name] = _Line(name)
            tenant.turns.append(line)
        for load in (self, tenant, line):
            load.add(waiting.call.weight, waiting.size)
        return line

    def _count_out(self, tenant: _Tenant, line: _Line, waiting: Waiting) -> None:
        for load in (self, tenant, line):
            load.add(-waiting.call.weight, -waiting.size)
        if not line.count:
            del tenant.lines[line.name]
        if not tenant.count:
            del self.tenants[tenant.name]

    def _newest_of_most(self, coming: Sender) -> Waiting:
        """Take the newest call of whoever has most, in the namespace that has most: no later one can rest on it.

        Of several that have as much it is the one that comes just now.
        """
        by_count = self.count > self.tuning.inbox_items

        def load(one: _Load, coming: str) -> tuple[int, bool]:
            return one.count if by_count else one.size, one.name == coming

        tenant = max(self.tenants.values(), key=lambda one: load(one, coming.namespace))
        line = max(tenant.lines.values(), key=lambda one: load(one, coming.name))
        newest = line.calls.pop()
        self._count_out(tenant, line, newest)
        if not line.count:
            tenant.turns.remove(line)
        if not tenant.count:
            self.turns.remove(tenant)
        return newest
