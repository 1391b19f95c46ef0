"""The faults: each knows how to happen to a site, and how to be over. The numbers are those of the fault matrix."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import asyncpg

from tests.chaos.databases import Postgres
from tests.chaos.processes import Running
from tests.chaos.records import Fault, now_ns, wall_us
from tests.chaos.site import Site


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


@dataclass(frozen=True, slots=True)
class Kill(Kind):
    """kill -9, and a new process under the same name after a while."""

    role: str
    respawn: float = 0.2

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        async with self.noted(site, f"{one.name}-{one.starts - 1}"):
            one.signal(signal.SIGKILL)
            await one.gone()
            await asyncio.sleep(self.respawn * site.lease)
            await one.start()


@dataclass(frozen=True, slots=True)
class Freeze(Kind):
    """SIGSTOP for some leases, then SIGCONT."""

    role: str
    leases: float = 3.0

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        async with self.noted(site, f"{one.name}-{one.starts - 1}", leases=self.leases):
            one.signal(signal.SIGSTOP)
            await asyncio.sleep(self.leases * site.lease)
            one.signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Drain(Kind):
    """SIGTERM: it leaves in good order, and another takes its name."""

    role: str
    next_one: bool = False
    """One after the other instead of any."""

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        if self.next_one:
            one = min(site.of_role(self.role), key=lambda other: (other.starts, other.name))
        async with self.noted(site, f"{one.name}-{one.starts - 1}"):
            one.signal(signal.SIGTERM)
            await one.gone()
            await one.start()


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


@dataclass(frozen=True, slots=True)
class DatabaseRestart(Kind):
    """PostgreSQL stops, stays away for some leases, and comes back."""

    mode: str = "immediate"
    away: float = 0.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "database", mode=self.mode):
            await site.database.stop(self.mode)
            await asyncio.sleep(self.away * site.lease)
            await site.database.start()


@dataclass(frozen=True, slots=True)
class Sql(Kind):
    """Statements of a stranger's, and those that undo them after some leases."""

    statements: tuple[str, ...]
    undo: tuple[str, ...] = ()
    leases: float = 1.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, f"database {self.statements[0]}"):
            await site.database.execute(*self.statements)
            await asyncio.sleep(self.leases * site.lease)
            await site.database.execute(*self.undo)


@dataclass(frozen=True, slots=True)
class LostListener(Kind):
    """The sessions over which servers hear and send hints are ended, and nothing else is.

    All other sessions of servers have a name. The last thing that this one said is that it listens, or a hint.
    """

    leases: float = 0.3

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "listeners"):
            ended = await site.database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '' "
                "AND (query LIKE 'LISTEN %' OR query LIKE 'SELECT pg_notify(%') AND pid <> pg_backend_pid()"
            )
            site.count("listeners_dropped", len(ended))
            await asyncio.sleep(self.leases * site.lease)


@dataclass(frozen=True, slots=True)
class ForeignLock(Kind):
    """A stranger's transaction holds locks and does nothing."""

    statement: str
    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        connection = await asyncpg.connect(site.database.url)
        async with self.noted(site, f"database {self.statement}"):
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
                async with connection.transaction():
                    await connection.execute(self.statement)
                    await asyncio.sleep(self.leases * site.lease)
        await connection.close()


@dataclass(frozen=True, slots=True)
class FrozenBackend(Kind):
    """SIGSTOP of a PostgreSQL process that is in the middle of a transaction of ours."""

    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        pid = await site.database.value(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'stepwell' "
            "ORDER BY (state LIKE '%transaction%' OR state = 'active') DESC, random() LIMIT 1"
        )
        if pid is None:
            return
        async with self.noted(site, f"backend {pid}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(self.leases * site.lease)
                os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class ClockStep(Kind):
    """The database's clock is moved, or stands still for some leases and then is right again."""

    seconds: float = 0.0
    stands: float = 0.0

    async def fire(self, site: Site) -> None:
        assert isinstance(site.database, Postgres)
        async with self.noted(site, "database", seconds=self.seconds, stands=self.stands):
            await site.database.execute(
                f"UPDATE chaos.clock_steps SET shift = shift + interval '{self.seconds} seconds'"
            )
            if self.stands:
                await site.database.execute("UPDATE chaos.clock_steps SET stands_at = pg_catalog.clock_timestamp()")
                await asyncio.sleep(self.stands * site.lease)
                await site.database.execute("UPDATE chaos.clock_steps SET stands_at = NULL")


@dataclass(frozen=True, slots=True)
class Starve(Kind):
    """A process gets a share of its time only, in slices of a tenth of a second."""

    role: str
    share: float
    leases: float = 3.0

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        loop = asyncio.get_running_loop()
        async with self.noted(site, f"{one.name}-{one.starts - 1} {self.share:.0%}"):
            until = loop.time() + self.leases * site.lease
            while loop.time() < until:
                one.signal(signal.SIGSTOP)
                await asyncio.sleep(0.1 * (1 - self.share))
                one.signal(signal.SIGCONT)
                await asyncio.sleep(0.1 * self.share)


@dataclass(frozen=True, slots=True)
class Block(Kind):
    """The event loop of a server does nothing for two leases (`server.py`)."""

    async def fire(self, site: Site) -> None:
        one = await victim(site, "server")
        async with self.noted(site, f"{one.name}-{one.starts - 1}"):
            one.signal(signal.SIGUSR1)
            await asyncio.sleep(2 * site.lease)


@dataclass(frozen=True, slots=True)
class Nothing(Kind):
    """No fault of the nemesis's: what goes wrong is part of the topology or the workload."""

    leases: float = 0.0

    async def fire(self, site: Site) -> None:
        async with self.noted(site, "-"):
            await asyncio.sleep(self.leases * site.lease)
