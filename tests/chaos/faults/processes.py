"""Faults of processes: they die, stand, are starved, leave, and come back."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass

from tests.chaos.facts.fact import now_ns
from tests.chaos.facts.run import Trouble
from tests.chaos.faults.kind import Kind, everybody, victim
from tests.chaos.site.processes import ROOT, python
from tests.chaos.site.site import DRAIN_GRACE, Site

CRASHED = 42
"""The exit code of a server that a failpoint has ended."""


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
class KillAll(Kind):
    """kill -9 of all of a role at once; they are away for some leases and come back at once."""

    role: str
    away: float = 2.0

    async def fire(self, site: Site) -> None:
        there = await everybody(site, self.role)
        async with self.noted(site, f"every {self.role}"):
            for one in there:
                one.signal(signal.SIGKILL)
            await asyncio.gather(*(one.gone() for one in there))
            await asyncio.sleep(self.away * site.lease)
            await asyncio.gather(*(one.start() for one in there))


@dataclass(frozen=True, slots=True)
class Herd(KillAll):
    """The same, and when they are back many others come, too, all of whom must be welcome in time (`herd.py`)."""

    streams: int = 300
    seconds: float = 15.0

    async def fire(self, site: Site) -> None:
        await KillAll.fire(self, site)
        servers = [site.direct(name) for name in site.server_names]
        config = {"servers": servers, "streams": self.streams, "seconds": self.seconds}
        async with self.noted(site, f"{self.streams} others"):
            process = await asyncio.create_subprocess_exec(
                *python("faults.herd", config), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, complaints = await process.communicate()
        welcomed = int(said or 0)
        site.count("herd_welcomed", welcomed)
        if welcomed < self.streams:
            text = f"{welcomed} of {self.streams} streams were welcome within {self.seconds:g} s {complaints.decode()}"
            site.recorder.record(Trouble("herd", text, now_ns()))


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
    """SIGTERM: it leaves in good order and in time, and another takes its name."""

    role: str
    next_one: bool = False
    """One after the other instead of any."""

    async def fire(self, site: Site) -> None:
        one = await victim(site, self.role)
        if self.next_one:
            one = min(site.of_role(self.role), key=lambda other: (other.starts, other.name))
        process, loop = f"{one.name}-{one.starts - 1}", asyncio.get_running_loop()
        async with self.noted(site, process):
            began = loop.time()
            one.signal(signal.SIGTERM)
            code, took = await one.gone(), loop.time() - began
            if code != 0 or took > DRAIN_GRACE[self.role] + 2:
                site.recorder.record(Trouble(process, f"it left with {code}, {took:.1f} s after SIGTERM", now_ns()))
            await one.start()


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
    """The event loop of a server does nothing for two leases. It must be that of `server.py`."""

    async def fire(self, site: Site) -> None:
        one = await victim(site, "server")
        async with self.noted(site, f"{one.name}-{one.starts - 1}"):
            one.signal(signal.SIGUSR1)
            await asyncio.sleep(2 * site.lease)


@dataclass(frozen=True, slots=True)
class CrashPoint(Kind):
    """A server is started so that it ends when it passes a place for the `hit`-th time, and then started as ever."""

    point: str
    hit: int
    leases: float = 2.0

    async def fire(self, site: Site) -> None:
        one = await victim(site, "server")
        async with self.noted(site, f"{one.name}-{one.starts - 1} {self.point}:{self.hit}"):
            one.signal(signal.SIGKILL)
            await one.gone()
            one.environment["STEPWELL_FAILPOINT"] = f"{self.point}:{self.hit}"
            with suppress(ProcessLookupError):  # it may crash before it serves
                await one.start(may_end=True)
            code = 0
            with suppress(TimeoutError):
                code = await one.gone(self.leases * site.lease)
            site.count("crash_points" if code == CRASHED else f"not reached: {self.point}:{self.hit}")
            del one.environment["STEPWELL_FAILPOINT"]
            one.signal(signal.SIGKILL)
            await one.gone()
            await one.start()


@dataclass(frozen=True, slots=True)
class Respawn(Kind):
    """Workers that die by themselves are started again."""

    leases: float = 10.0

    async def fire(self, site: Site) -> None:
        async with self.noted(site, "workers"):
            loop = asyncio.get_running_loop()
            until = loop.time() + self.leases * site.lease
            while loop.time() < until:
                for name in site.worker_names:
                    one = site.processes[name]
                    if not one.alive:
                        await one.start()
                await asyncio.sleep(0.1)
