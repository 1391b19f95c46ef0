"""A running engine, as the processes that its users would run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import psutil

from bench.processes import ORDER_TIMEOUT, DidNotAnswer, Driver

LOOK_EVERY = 1.0
"""Seconds between looks whether every process still lives."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that takes orders through its client, and the processes to watch by their role."""

    title: str
    """Its name and version."""
    settings: str
    """What makes it durable, and how it was tuned."""
    client: Driver
    processes: dict[str, psutil.Process]

    async def order(self, load: str, **sizes: float) -> dict[str, Any]:
        """Have one load run. DidNotAnswer if a process that it needs ends meanwhile: no answer would ever come."""
        ordered = asyncio.create_task(self.client.order(load, **sizes))
        try:
            async with asyncio.timeout(ORDER_TIMEOUT):
                while not (await asyncio.wait({ordered}, timeout=LOOK_EVERY))[0]:
                    self._check_processes(load)
                return ordered.result()
        finally:
            ordered.cancel()

    def _check_processes(self, load: str) -> None:
        for role, process in self.processes.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise DidNotAnswer(f"{load}: the {role} has ended")


StartEngine: TypeAlias = Callable[[str], AbstractAsyncContextManager[Engine]]
