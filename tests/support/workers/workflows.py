"""What stories about workflows share: bodies that wait for the test, and calls that must be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepwell import CallFailed
from tests.support.patience import PATIENCE


@dataclass
class Gate:
    """A step body that says when it began, and goes on when the test lets it."""

    result: Any = None
    count: int = 0
    _begun: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> Any:
        self.count += 1
        self._begun.set()
        await self._opened.wait()
        return self.result

    async def reached(self) -> None:
        """Return once the body has begun, for the first time since this was last asked."""
        async with asyncio.timeout(PATIENCE):
            await self._begun.wait()
        self._begun.clear()

    def open(self) -> None:
        """Let the body go on, and all later ones."""
        self._opened.set()


async def refused(call: Awaitable[Any]) -> str:
    """The reason of a call that must be refused."""
    with pytest.raises(CallFailed) as caught:
        await call
    return caught.value.reason
