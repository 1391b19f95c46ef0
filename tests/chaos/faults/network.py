"""Faults of links."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from tests.chaos.faults.kind import Kind, victim
from tests.chaos.site.site import Site


@dataclass(frozen=True, slots=True)
class Storm(Kind):
    """Weather on some links for some leases. `number`: how many of those that match."""

    links: str
    do: str
    leases: float = 1.0
    number: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    async def fire(self, site: Site) -> None:
        matching = sorted(name for name in site.links if fnmatch(name, self.links))
        chosen = site.rng.sample(matching, min(self.number, len(matching)))
        async with self.noted(site, f"{self.do} {','.join(chosen)}", **self.options):
            for link in chosen:
                await site.weather(link, self.do, **self.options)
            await asyncio.sleep(self.leases * site.lease)
            for link in chosen:
                await site.weather(link, "pass")


@dataclass(frozen=True, slots=True)
class Partition(Kind):
    """All links of one process to others are blackholed, one way or both."""

    role: str
    way: str = "both"
    leases: float = 3.0

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        links = [link for link in site.links if one.name in link.split("/") and not link.endswith("/database")]
        async with self.noted(site, f"{one.name}-{one.starts - 1} {self.way}"):
            for link in links:
                await site.weather(link, "blackhole", way=self.way)
            await asyncio.sleep(self.leases * site.lease)
            for link in links:
                await site.weather(link, "pass")
