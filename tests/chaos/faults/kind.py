"""What a fault is: it knows how to happen to a site, and how to be over. The numbers are those of the fault matrix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.chaos.facts.fact import now_ns, wall_us
from tests.chaos.facts.run import NOBODY, Fault
from tests.chaos.site.processes import Running
from tests.chaos.site.site import Site


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. Times are in leases, so that one schedule fits every clock."""

    id: str

    async def fire(self, site: Site) -> None:
        """Let it happen, and be over."""
        raise NotImplementedError

    @asynccontextmanager
    async def noted(self, site: Site, target: str, **details: Any) -> AsyncIterator[None]:
        """Write down that it begins and ends."""
        site.recorder.record(Fault(self.id, target, "begin", now_ns(), wall_us(), details))
        try:
            yield
        finally:
            site.recorder.record(Fault(self.id, target, "end", now_ns(), wall_us()))


async def victim(site: Site, role: str) -> Running:
    """Some process of the role that serves and moves; if all are down, the first that is up again."""
    async with asyncio.timeout(60):
        while not (candidates := site.of_role(role)):
            await asyncio.sleep(0.05)
    return site.rng.choice(candidates)


async def everybody(site: Site, role: str) -> list[Running]:
    """All processes of the role, as soon as all serve and move."""
    number = sum(name.startswith(role) for name in site.processes)
    async with asyncio.timeout(60):
        while len(there := site.of_role(role)) < number:
            await asyncio.sleep(0.05)
    return there


@dataclass(frozen=True, slots=True)
class Nothing(Kind):
    """No fault of the nemesis's: what goes wrong is part of the topology or the workload."""

    leases: float = 0.0

    async def fire(self, site: Site) -> None:
        async with self.noted(site, NOBODY):
            await asyncio.sleep(self.leases * site.lease)
