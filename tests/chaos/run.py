"""One run: start the site, let the driver work, let the nemesis loose, heal, wait for rest, write down what is left."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tests.chaos.facts.fact import now_ns, wall_us
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.run import Plan, Stage, Trouble
from tests.chaos.scenarios.scenario import Scenario, draw
from tests.chaos.site import trail
from tests.chaos.site.databases import Postgres, Sqlite
from tests.chaos.site.names import NAMESPACES
from tests.chaos.site.site import SLOTS, Site, open_site
from tests.chaos.site.vitals import Vitals
from tests.chaos.workload.primitives import PRIMITIVES
from tests.chaos.workload.tables import fetch, tasks

Say = Callable[[str], None]


class Run:
    """A scenario with a seed, in a folder of its own."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path, say: Say) -> None:
        self.scenario = scenario
        self.seed = seed
        self.folder = folder
        self.say = say
        self.recorder = Recorder(folder / "conductor.jsonl")
        self.drawn = draw(scenario, seed)
        self.is_quiet = False

    async def execute(self) -> Vitals:
        """All stages, from the first process to the last record."""
        self._write_plan()
        topology = self.scenario.topology
        async with open_site(topology, self.folder, self.seed, self.recorder) as site:
            vitals = Vitals(site)
            async with vitals.watching():
                await self._break_and_heal(site)
            await vitals.look_at_rest()
            self._stage("snapshot")
            await self._snapshot(site)
            self._note_damage(site)
            self.say(f"the nemesis counted {dict(site.counts)}")
        for process in site.processes.values():
            self.recorder.record(*process.troubles())
        return vitals

    async def _break_and_heal(self, site: Site) -> None:
        driver = site.driver({load.primitive: asdict(load) for load in self.scenario.workload})
        await self._registered(site)
        await driver.start()
        self._started = time.monotonic()
        self._stage("warm")
        await asyncio.sleep(self.scenario.warm * site.lease)
        self._stage("faults")
        await self._nemesis(site)
        await self._heal(site)
        self._stage("heal")
        await self._rest(site)
        await self._tail(site)

    def _stage(self, name: str) -> None:
        self.say(f"{name}")
        self.recorder.record(Stage(name, now_ns(), wall_us()))  # type: ignore[arg-type]

    def _write_plan(self) -> None:
        scenario = self.scenario
        self.recorder.record(
            Plan(
                seed=self.seed,
                lease_us=round(scenario.topology.lease * 1_000_000),
                database=scenario.topology.database,
                operations=self._operations(),
                faults=dict(Counter(kind.id for _, kind in self.drawn)),
                overlaps=scenario.overlaps,
                slots=SLOTS,
                clock_steps=scenario.topology.clock,
                once=scenario.once,
                takeovers_at_most=scenario.takeovers_at_most,
                may_give_up=scenario.may_give_up,
                excuse=scenario.excuse,
                arrivals_us=round(self._arrivals() * 1_000_000),
                drain_leases=scenario.drain_leases,
                lateness_us=round(scenario.patience * scenario.topology.lease * 1_000_000),
                heal_us=round(2 * scenario.patience * scenario.topology.lease * 1_000_000),
            )
        )
        self.recorder.record(*(plan for load in scenario.workload for plan in load.plans(self.seed)))

    def _operations(self) -> dict[str, int]:
        """The requests that clients mean to make."""
        planned = Counter[str]()
        for load in self.scenario.workload:
            planned.update(load.operations(self.seed))
        return dict(planned)

    async def _registered(self, site: Site) -> None:
        """Wait until workers have said what they host."""
        async with asyncio.timeout(60):
            while True:
                rows = await fetch(
                    site.database.url, "SELECT namespace, name FROM handlers WHERE registered_at IS NOT NULL"
                )
                names = [name for load in self.scenario.workload for name in load.handlers]
                wanted = set(product(NAMESPACES, names))
                if wanted <= {(row["namespace"], row["name"]) for row in rows}:
                    return
                await asyncio.sleep(0.1)

    async def _nemesis(self, site: Site) -> None:
        """One fault after the other begins; they may overlap. Then wait until all are over."""
        started = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for number, (pause, kind) in enumerate(self.drawn):
                self.say(f"fault {number + 1}/{len(self.drawn)}: {kind.id} {type(kind).__name__}")
                firing = group.create_task(kind.fire(site))
                if pause < 0:
                    await firing  # those that must not overlap
                await asyncio.sleep(abs(pause) * site.lease)
        self.say(f"the nemesis took {asyncio.get_running_loop().time() - started:.0f} s")

    async def _heal(self, site: Site) -> None:
        for link in site.links:
            await site.weather(link, "pass")
        for name in [*site.server_names, *site.worker_names, *site.dispatcher_names]:
            process = site.processes[name]
            process.signal(signal.SIGCONT)
            if not process.alive:
                await process.start()

    async def _rest(self, site: Site) -> None:
        """Wait until everything has ended, as the driver sees it and as the tables say."""
        left = max(0.0, self._arrivals() + 5 - self._age())
        limit = left + 2 * self.scenario.drain_leases * site.lease
        try:
            async with asyncio.timeout(limit):
                await site.processes["driver"].line("ended")
                while await self._is_busy(site):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.say(f"no rest after {limit:.0f} s")
            return
        self.is_quiet = True
        self._stage("quiet")

    async def _is_busy(self, site: Site) -> bool:
        """Whether there are other tasks than those that may be left."""
        left = " - ".join(["(SELECT count(*) FROM tasks)", *(load.left for load in self.scenario.workload)])
        rows = await fetch(site.database.url, f"SELECT {left} AS others")
        return bool(rows[0]["others"])

    def _note_damage(self, site: Site) -> None:
        """A file of SQLite is whole, whatever happened to it."""
        if isinstance(site.database, Sqlite):
            with closing(sqlite3.connect(site.database.path)) as connection:
                said = connection.execute("PRAGMA integrity_check").fetchone()[0]
            if said != "ok":
                self.recorder.record(Trouble("database", said, now_ns()))

    def _arrivals(self) -> float:
        """Seconds from the driver's start to the last arrival."""
        return max(load.last_arrival(self.seed) for load in self.scenario.workload)

    def _age(self) -> float:
        """Seconds since the driver was started."""
        return time.monotonic() - self._started

    async def _tail(self, site: Site) -> None:
        """Everybody must answer again."""
        driver = site.processes["driver"]
        if not self.is_quiet or not driver.alive:
            return
        assert driver.process is not None and driver.process.stdin is not None
        driver.expect_exit()
        driver.process.stdin.write(b"heal\n")
        async with asyncio.timeout(60):
            await driver.line("done")

    async def _snapshot(self, site: Site) -> None:
        """Whatever is there, of the primitives that the run does not use, too."""
        url, address = site.database.url, site.direct(site.server_names[0])
        for primitive in PRIMITIVES.values():
            self.recorder.record(*await primitive.snapshot(address, url))
        clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now"
        now_us = (await fetch(url, clock))[0]["now"] if isinstance(site.database, Postgres) else wall_us()
        self.recorder.record(*await tasks(url, now_us))
        self.recorder.record(*await trail.read(url))
