"""A server of a chaos run whose database stumbles: the same program, with a store around its store.

    python -m tests.chaos.site.server '{"folder": "...", "name": "server-0", "execute_then_fail": 0.05}' --listen ...

`execute_then_fail`: part of the commits that are done and reported as failed. `conflict`: part of the transactions
that PostgreSQL refuses, when all their work is done, as it refuses those that lost against others. `commit_ms`:
longest delay before a commit, inside the transaction. `connection_age_ms`: after which connections are asked to go.
`lost_hints`: part of the hints to other replicas that are lost without a word.
SIGUSR1 blocks the event loop for two leases. SIGUSR2 writes down how many tasks there are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, text

from stepwell_server import __main__ as program
from stepwell_server import databases
from stepwell_server.api.edge import listeners
from stepwell_server.storage.database.database import Database, T, Tx, TxOptions, Work
from stepwell_server.storage.database.hints import Hint, PostgresqlHints
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.run import Count
from tests.chaos.site.processes import count_tasks_when_asked
from tests.support.faults.faults import FaultyBackend, Rates

DELAYED = {"group", "slow-lane", "call", "sweep"}


@dataclass
class StumblingBackend(FaultyBackend):
    """A store that takes its time with commits, and says of some that they failed."""

    commit_ms: float = 0.0
    recorder: Recorder | None = None

    async def attempt(self, work: Work[T], options: TxOptions) -> T:
        """Run the transaction, slowly, and perhaps deny it. Reads are left alone."""
        if options.read_only:
            result: T = await self.inner.attempt(work, options)
            return result
        if self.commit_ms and options.label in DELAYED:
            work = _delayed(work, self._random.uniform(0, self.commit_ms) / 1000)
        return await super().attempt(work, options)

    def _happens(self, fault: str, rate: float) -> bool:
        happens = super()._happens(fault, rate)
        if happens and self.recorder is not None:
            self.recorder.record(Count(fault, 1))
        return happens


def _delayed(work: Work[T], seconds: float) -> Work[T]:
    def delayed(tx: Tx) -> T:
        result = work(tx)
        if tx.dialect.name == "sqlite":
            time.sleep(seconds)
        else:
            tx.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})
        return result

    return delayed


def lose_hints(odds: float, recorder: Recorder) -> None:
    """Let hints of this replica get lost, which nobody notices."""
    send = PostgresqlHints.send

    async def losing(self: PostgresqlHints, hint: Hint) -> None:
        if random.random() < odds:
            recorder.record(Count("lost_hints", 1))
        else:
            await send(self, hint)

    PostgresqlHints.send = losing  # type: ignore[method-assign]


def main(config: dict[str, Any], arguments: list[str]) -> int:
    """Run the server as ever, over a store that stumbles."""
    recorder = Recorder(Path(config["folder"]) / f"store-{config['name']}-{os.getpid()}.jsonl")
    rates = {"*": Rates(**{name: config.get(name, 0.0) for name in ("execute_then_fail", "conflict")})}
    open_database = databases.open_database

    def stumbling(url: URL) -> Database:
        db = open_database(url)
        seed = random.Random(f"{config['seed']}/{config['name']}").getrandbits(32)
        backend = StumblingBackend(db.backend, rates, seed, commit_ms=config.get("commit_ms", 0.0), recorder=recorder)
        return Database(backend, db.failpoints)

    databases.open_database = stumbling
    if "connection_age_ms" in config:
        age = config["connection_age_ms"]
        ages = {"grpc.max_connection_age_ms": age, "grpc.max_connection_age_grace_ms": age}
        listeners.OPTIONS[:] = (dict(listeners.OPTIONS) | ages).items()
    if "lost_hints" in config:
        lose_hints(config["lost_hints"], recorder)
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(2 * config["lease"]))
    count_tasks_when_asked(Path(config["folder"]), config["name"])
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
