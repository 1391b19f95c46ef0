"""Workers together: who gets what, and what a lost one leaves behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from sqlalchemy import update

from stepwell import InstanceStatus, workflow
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema import tasks
from tests.behaviour.workflows.conftest import LeasesLapse, StartHarness
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served
from tests.support.workers.workflows import Gate

HOUR_US = 3_600_000_000


@workflow("sleeper")
async def sleeper(event, step):
    await step.sleep("nap", "1 hour")
    return "awake"


async def test_every_step_of_every_instance_is_done_by_one_of_many_workers(harness: StartHarness) -> None:
    """Behaviours 197, 198."""
    calls: Counter[str] = Counter()

    @workflow("counted")
    async def counted(event, step):
        for name in ("a", "b", "c"):
            key = f"{event.instance_id} {name}"
            await step.do(name, lambda key=key: calls.update([key]))
            await step.sleep(f"after {name}", "1 minute")

    h = await harness(counted, cache=0)
    for _ in range(3):
        await h.start_worker()
    instances = await h.client.workflow(counted).create_batch([{"id": f"n{number}"} for number in range(20)])
    await h.advance("3 minutes")

    assert {(await instance.status()).status for instance in instances} == {InstanceStatus.COMPLETE}
    assert set(calls.values()) == {1} and len(calls) == 60


async def test_a_task_that_is_free_is_taken_although_an_old_lock_stands_on_it(
    harness: StartHarness, served: Served
) -> None:
    """Behaviour 204; seed 001 section 5, "Lease renewal guard"."""
    h = await harness(sleeper)
    instance = await h.start(sleeper)

    def lock(tx: Tx) -> None:
        mine = (tasks.c.namespace == h.namespace, tasks.c.key == instance.id, tasks.c.status == "pending")
        locked = (
            update(tasks).where(*mine).values(locked_until=lease_now() + HOUR_US, session_id="f" * 32, connection=1)
        )
        assert tx.execute(locked).rowcount == 1

    await served.app.db.run_tx(lock)
    await h.advance("1 hour")

    assert (await instance.status()).output == "awake"


async def test_a_slow_step_holds_up_nobody(harness: StartHarness) -> None:
    """Behaviours 35, 216."""
    gate = Gate()

    @workflow("slow")
    async def slow(event, step):
        await step.do("work", gate)

    h = await harness(slow, sleeper)
    held_up = await h.client.workflow(slow).create()
    await gate.reached()
    quick = await h.client.workflow(sleeper).create_batch([{} for _ in range(9)])
    async with asyncio.timeout(PATIENCE):
        while {(await instance.status()).status for instance in quick} != {InstanceStatus.WAITING}:
            await asyncio.sleep(0)

    assert (await held_up.status()).status == InstanceStatus.RUNNING
    gate.open()


async def test_a_worker_that_died_is_replaced_and_the_time_of_a_sleep_stays(
    harness: StartHarness, leases_lapse: LeasesLapse
) -> None:
    """Behaviours 94, 121, 200."""
    gate = Gate()

    @workflow("mixed")
    async def mixed(event, step):
        await asyncio.gather(step.sleep("nap", "1 hour"), step.do("work", gate))

    h = await harness(mixed)
    began = await h.now()
    instance = await h.client.workflow(mixed).create()
    await gate.reached()
    await h.crash_worker()
    await leases_lapse()
    gate.open()
    await h.start_worker()
    await h.advance("2 hours")

    assert (await instance.status()).ended_at == began + timedelta(hours=1)
    assert gate.count == 2
