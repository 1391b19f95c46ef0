"""Waits that callers ask for: they end when their time has passed, or at once when the replica goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stepwell_server.domain.values.tuning import DEFAULT


@dataclass(slots=True)
class Waits:
    """All waits of one kind."""

    while_draining: float = DEFAULT.drain_wait
    """Longest wait that begins while the replica drains, in seconds."""
    is_draining: bool = False
    _open: set[asyncio.Timeout] = field(default_factory=set)

    def ends(self, seconds: float) -> float:
        """When a wait of so many seconds is over that begins now, by the loop's clock."""
        return asyncio.get_running_loop().time() + (min(seconds, self.while_draining) if self.is_draining else seconds)

    @asynccontextmanager
    async def until(self, when: float) -> AsyncIterator[None]:
        """Wait inside, at most until then; `TimeoutError` says that it was not worth it."""
        async with asyncio.timeout_at(when) as limit:
            self._open.add(limit)
            try:
                yield
            finally:
                self._open.discard(limit)

    def drain(self) -> None:
        """End all of them at once."""
        self.is_draining = True
        for limit in self._open:
            if not limit.expired():
                limit.reschedule(0.0)
