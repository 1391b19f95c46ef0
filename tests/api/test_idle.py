"""A server at rest: what it asks its database, however much waits for later."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Hire
from tests.support.calls.triggers import Triggers, item
from tests.support.calls.wakes import Sidecar, until_settled, waits
from tests.support.databases.statements import counted
from tests.support.servers.servers import StartServer
from tests.support.workers.frames import returned

DAY = 86_400.0
ROUNDS = 24
"""Sweeps of two minutes."""


@pytest.mark.parametrize("dispatch", ["embedded", "external"])
async def test_at_rest_a_server_asks_nothing_but_its_sweep(
    start_server: StartServer, database_url: str, hire_at: Hire, dispatch: str
) -> None:
    """With a worker that beats, a dispatcher that follows and 10,000 timers that are far."""
    served = await start_server(database_url, dispatch=dispatch)
    hooks, sidecar = Triggers(served.channel), Sidecar(served.channel)
    far = await hooks.now() + DAY
    for _ in range(10):
        batches = [[item(name="note", process_at=far) for _ in range(100)] for _ in range(10)]
        await asyncio.gather(*(hooks.trigger_many(*batch) for batch in batches))
    worker = await hire_at(served, hooks=("note",), credit=10)
    async with sidecar.follow() as follower:
        await follower.until(waits)
        await hooks.trigger("now")  # it has worked, and rests now
        await sidecar.process()
        job = await worker.take()
        await job.tell(returned())
        await follower.until(lambda said: not said.next_wake.unserved and far - 1 < said.next_wake.wake_at.seconds)
        await until_settled(served)

        with counted(served.app) as statements:
            for _ in range(ROUNDS):
                await served.app.sweep.once()
                await served.app._swept(True)
                await worker.beat()

    beyond = {label: count for label, count in statements.items() if label != "sweep"}
    assert sum(beyond.values()) <= 4, beyond
    assert statements["sweep"] <= 8 * (ROUNDS + 5)
