"""What stories about hooks share: handlers that remember who called them, and fail or wait as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stepwell import HookDefinition, JobContext, hook
from tests.support.patience import PATIENCE


class Calls:
    """A hook that remembers each of its executions, fails as often as it is told to, and can be made to wait."""

    def __init__(self, name: str = "note", *, failures: int = 0, waits: bool = False, **options: Any) -> None:
        self.contexts: list[JobContext] = []
        self.payloads: list[Any] = []
        self.is_open = asyncio.Event()
        self._failures = failures
        self._begun = asyncio.Condition()
        if not waits:
            self.is_open.set()
        self.hook: HookDefinition[Any] = hook(name, **options)(self._execute)

    def __len__(self) -> int:
        return len(self.contexts)

    async def _execute(self, payload: Any, ctx: JobContext) -> None:
        async with self._begun:
            self.contexts.append(ctx)
            self.payloads.append(payload)
            self._begun.notify_all()
        await self.is_open.wait()
        if len(self.contexts) <= self._failures:
            raise ConnectionError("no route")

    async def reached(self, count: int) -> None:
        """Return once so many executions have begun."""
        async with asyncio.timeout(PATIENCE), self._begun:
            await self._begun.wait_for(lambda: len(self.contexts) >= count)

    @property
    def keys(self) -> Sequence[str]:
        """The idempotency keys of all executions."""
        return [ctx.idempotency_key for ctx in self.contexts]
