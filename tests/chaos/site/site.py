"""The site of a chaos run: the database, servers, workers and the driver, with a proxy on every link between them."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from grpc import aio

from stepwell.v1.namespaces_pb2 import CreateNamespaceRequest
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.run import Count
from tests.chaos.site import trail
from tests.chaos.site.databases import Postgres, Sqlite, small_disk, start_postgres
from tests.chaos.site.names import ELSEWHERE
from tests.chaos.site.processes import SERVER, Running, python

LISTENING_PORTS = range(10_000, 32_000)
"""Below those that Linux takes for the near end of a connection."""
SLOTS = 40
"""Runs that a worker takes at once."""
DRAIN_GRACE = {"server": 5.0, "worker": 10.0}
"""Seconds in which what is under way may end when a process is told to leave."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What there is. Times are seconds; `lease` is the L of every report."""

    database: Literal["sqlite", "postgresql"] = "postgresql"
    servers: int = 3
    workers: int = 4
    dispatchers: tuple[Literal["stream", "poll"], ...] = ()
    """Sidecars, by how they learn of what is due."""
    lease: float = 3.0
    store: dict[str, float] = field(default_factory=dict)
    """How the store stumbles; see `server.py`. Empty: the plain program."""
    serializable: bool = False
    clock: bool = False
    """The database's clock can be moved."""
    settings: tuple[str, ...] = ()
    """More flags for servers."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """Variables of processes, by the beginning of their names."""
    mortal: bool = False
    """Workers may die by themselves: what they execute kills them."""
    zombies: int = 0
    """So many of the workers report what they have lost; see `zombies.py`."""
    disk_mib: int = 0
    """The SQLite file lies on a disk of this size. 0: wherever the records are."""


def free_ports(number: int) -> list[int]:
    """Ports that nobody has at the moment, and that the system gives nobody for a connection while a server is down."""
    candidates = iter(random.sample(LISTENING_PORTS, 10 * number))
    return list(islice(filter(_is_free, candidates), number))


def _is_free(port: int) -> bool:
    with socket.socket() as one, suppress(OSError):
        one.bind(("127.0.0.1", port))
        return True
    return False


@dataclass
class Site:
    """Everything that runs, by name."""

    topology: Topology
    folder: Path
    seed: int
    database: Postgres | Sqlite
    recorder: Recorder
    ports: dict[str, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    """Port of each link, by name: "worker-0/server-1", "driver/server-1", "server-1/database"."""
    processes: dict[str, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"nemesis/{self.seed}")
        self.lease = self.topology.lease
        self.counts: Counter[str] = Counter()

    def count(self, name: str, number: int = 1) -> None:
        """Write down that something happened which a run may have to show."""
        self.counts[name] += number
        self.recorder.record(Count(name, number))

    @property
    def server_names(self) -> list[str]:
        """All servers."""
        return [f"server-{number}" for number in range(self.topology.servers)]

    @property
    def worker_names(self) -> list[str]:
        """All workers."""
        return [f"worker-{number}" for number in range(self.topology.workers)]

    @property
    def dispatcher_names(self) -> list[str]:
        """All dispatchers."""
        return [f"dispatcher-{number}" for number in range(len(self.topology.dispatchers))]

    def of_role(self, role: str) -> list[Running]:
        """The processes of a role that serve and move."""
        there = [one for name, one in self.processes.items() if name.startswith(role)]
        return [one for one in there if one.alive and one.serves and not one.frozen]

    def address(self, who: str) -> str:
        """Where a worker or the driver finds all servers, through its own links."""
        return "ipv4:" + ",".join(f"127.0.0.1:{self.links[f'{who}/{server}']}" for server in self.server_names)

    def direct(self, server: str) -> str:
        """Where a server really listens."""
        return f"127.0.0.1:{self.ports[server]}"

    async def weather(self, link: str, do: str, **options: Any) -> None:
        """Tell the proxy what happens to a link."""
        await self.processes["proxy"].tell({"link": link, "do": do, **options})

    # ---- what is started

    def plan(self) -> None:
        """Give every server a port and every link a place."""
        names = self.server_names
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        callers = [*self.worker_names, *self.dispatcher_names, "driver"]
        links = [f"{who}/{server}" for who in callers for server in names]
        if isinstance(self.database, Postgres):
            links += [f"{server}/database" for server in names]
        self.links = dict(zip(links, free_ports(len(links)), strict=True))
        self._add(
            "proxy", lambda: python("site.proxy", {"links": self._proxied(), "seed": self.seed}), ready='{"ready"'
        )
        for name in names:
            self._add(name, lambda name=name: self._server(name), ready="listening on")  # type: ignore[misc]
        for name in self.worker_names:
            self._add(name, lambda name=name: self._worker(name), ready="ready")  # type: ignore[misc]
        for name, mode in zip(self.dispatcher_names, self.topology.dispatchers, strict=True):
            self._add(name, lambda name=name, mode=mode: self._dispatcher(name, mode))  # type: ignore[misc]

    def _add(self, name: str, command: Any, ready: str = "") -> None:
        environment: dict[str, str] = {}
        for beginning, variables in self.topology.environment.items():
            if name.startswith(beginning):
                environment |= variables
        mortal = self.topology.mortal and name.startswith("worker")
        self.processes[name] = Running(name, command, self.folder, self.recorder, environment, ready, mortal=mortal)

    def _proxied(self) -> list[dict[str, Any]]:
        def upstream(link: str) -> str:
            to = link.partition("/")[2]
            if to == "database":
                assert isinstance(self.database, Postgres)
                return self.database.socket
            return self.direct(to)

        return [{"name": name, "listen": port, "upstream": upstream(name)} for name, port in self.links.items()]

    def _server(self, name: str) -> list[str]:
        lease = self.lease
        url = self.database.url
        if isinstance(self.database, Postgres):
            url = self.database.through(self.links[f"{name}/database"])
        store = {"folder": str(self.folder), "name": name, "seed": self.seed, "lease": lease, **self.topology.store}
        program = python("site.server", store) if self.topology.store else SERVER
        return [
            *program,
            *("--listen", self.direct(name), "--ops-listen", "127.0.0.1:0", "--database", url),
            *("--leases.lease", f"{lease}", "--leases.ack-window", f"{lease}"),  # of a machine that is busy
            *("--leases.reconnect-grace", f"{lease / 6}", "--drain-settle", "0.2"),
            *("--drain-grace", f"{DRAIN_GRACE['server']}"),
            *self.topology.settings,
        ]

    def _worker(self, name: str) -> list[str]:
        config = {
            "folder": str(self.folder),
            "name": name,
            "address": self.address(name),
            "slots": SLOTS,
            "grace": DRAIN_GRACE["worker"],
            "zombie": name in self.worker_names[: self.topology.zombies],
        }
        return python("workload.worker", config)

    def _dispatcher(self, name: str, mode: str) -> list[str]:
        return [sys.executable, "-m", "stepwell.cli", "dispatcher", "--server", self.address(name), "--mode", mode]

    def driver(self, loads: dict[str, dict[str, Any]]) -> Running:
        """The client, not yet started, with the load of each primitive as plain values."""
        config = {
            "folder": str(self.folder),
            "seed": self.seed,
            "loads": loads,
            "address": self.address("driver"),
            "servers": {name: f"127.0.0.1:{self.links[f'driver/{name}']}" for name in self.server_names},
        }
        self._add("driver", lambda: python("workload.driver", config))
        return self.processes["driver"]

    async def open(self) -> None:
        """Make the tables, then start everything but the driver."""
        await _migrate(self.database.url)
        await trail.install(self.database.url)
        if isinstance(self.database, Postgres):
            if self.topology.serializable:
                await self.database.execute(
                    "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'"
                )
            if self.topology.clock:
                await self.database.put_clock_under_control()
        self.plan()
        await self.processes["proxy"].start()
        await asyncio.gather(*(self.processes[name].start() for name in self.server_names))
        await _make_namespace(self.direct(self.server_names[0]))
        clients = [*self.worker_names, *self.dispatcher_names]
        await asyncio.gather(*(self.processes[name].start() for name in clients))

    async def close(self) -> None:
        """End everything, servers last."""
        for role in ("driver", "dispatcher", "worker", "server", "proxy"):
            await asyncio.gather(*(one.stop() for name, one in self.processes.items() if name.startswith(role)))


@asynccontextmanager
async def open_site(topology: Topology, folder: Path, seed: int, recorder: Recorder) -> AsyncIterator[Site]:
    """A site with a database of its own; at the end nothing of it is left but its records."""
    if topology.database == "sqlite":
        with small_disk(folder / "disk", topology.disk_mib) as disk:
            async with _opened(Site(topology, folder, seed, Sqlite(disk / "stepwell.db"), recorder)) as site:
                yield site
        return
    with start_postgres() as postgres:
        async with _opened(Site(topology, folder, seed, postgres, recorder)) as site:
            yield site


@asynccontextmanager
async def _opened(site: Site) -> AsyncIterator[Site]:
    try:
        await site.open()
        yield site
    finally:
        await site.close()


async def _make_namespace(address: str) -> None:
    """Make the other namespace, over a store that may stumble."""
    request = CreateNamespaceRequest(name=ELSEWHERE, request_id=uuid4().hex)
    async with aio.insecure_channel(address) as channel, asyncio.timeout(20):
        while True:
            with suppress(aio.AioRpcError):
                await NamespaceServiceStub(channel).CreateNamespace(request)
                return
            await asyncio.sleep(0.1)


async def _migrate(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *SERVER, "migrate", "--database", url, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
