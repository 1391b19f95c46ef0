"""The metrics of a real server: everything that happened is counted, and the page that explains them names all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import update

from stepwell.v1.frames_pb2 import HANDLER_KIND_HOOK
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine import committer
from stepwell_server.engine.spine.committer import PATIENCE as GROUPS
from stepwell_server.engine.spine.timings import Stage
from stepwell_server.storage.database.clock import lease_now
from stepwell_server.storage.database.database import LostRace
from stepwell_server.storage.schema import lease_clock
from stepwell_server.telemetry import Metrics
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers
from tests.support.databases.postgres import PostgresServer
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import finish, returned
from tests.support.workers.workers import ACK_WINDOW, age_leases, grant

WAYS = ("hot", "slow")
STAGES = ("lock", "read", "decide", "write", "commit", "deliver")
ROW = re.compile(r"^\| `(stepwell_\w+)` \|([^|]*)\|", re.MULTILINE)


def read(server: Served, name: str, **labels: str) -> float:
    """A metric as Prometheus would read it."""
    value = server.app.metrics.registry.get_sample_value(f"stepwell_{name}", labels)
    assert value is not None, f"{name} {labels} is not there"
    return value


async def until(server: Served, least: float, name: str, **labels: str) -> None:
    """Return once a metric has grown to this."""
    async with asyncio.timeout(PATIENCE):
        while read(server, name, **labels) < least:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def locked(postgres_url: str, task_id: int) -> AsyncIterator[None]:
    """Hold the lock of a task until the block ends, as another replica would."""
    connection = await asyncpg.connect(postgres_url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT id FROM tasks WHERE id = $1 FOR UPDATE", task_id)
            yield
    finally:
        await connection.close()


async def test_all_that_happens_to_runs_and_hooks_is_counted(
    server: Served, hire: Hire, flows: Flows, triggers: Triggers
) -> None:
    worker = await hire("order", hooks=("note",), credit=1)
    await worker.beat()  # its credit is known now
    await flows.create("born")
    await (await worker.take()).tell(finish())
    await flows.create("waited")
    await triggers.trigger("first")
    await worker.say(grant(2))
    for job in [await worker.take(), await worker.take()]:
        await job.tell(returned() if job.task.handler.kind == HANDLER_KIND_HOOK else finish())

    groups, calls = (sum(read(server, f"group_calls_{one}", way=way) for way in WAYS) for one in ("count", "sum"))
    assert [read(server, "stage_seconds_count", stage=stage) for stage in STAGES] == [groups] * len(STAGES)
    assert read(server, "stage_seconds_count", stage="inbox") == calls
    assert 1 <= read(server, "stage_seconds_count", stage="claim") < groups <= calls
    assert min(read(server, "stage_seconds_sum", stage=stage) for stage in (*STAGES, "inbox", "claim")) > 0
    assert (read(server, "claimed_total", kind="workflow"), read(server, "claimed_total", kind="hook")) == (2, 1)
    late = [read(server, "wake_lateness_seconds_count", kind=kind) for kind in ("workflow", "hook")]
    assert late == [1, 1], "what was born with a lease was never due"
    lost = [read(server, "leases_lapsed_total", kind="workflow"), read(server, "stale_frames_total")]
    assert [*lost, read(server, "leases_extended_total")] == [0, 0, 0]


async def test_a_worker_that_is_lost_is_counted_as_a_lapsed_lease_and_told_so(brisk: Served, hire_at: Hire) -> None:
    deaf = await hire_at(brisk, credit=1)
    await Flows(brisk.channel).create("one")
    lost = await deaf.take(ack=False)
    await age_leases(brisk, ACK_WINDOW)

    await (await hire_at(brisk, credit=1)).take()
    await lost.stale()

    assert read(brisk, "leases_lapsed_total", kind="workflow") == 1
    assert read(brisk, "leases_lapsed_total", kind="hook") == 0
    assert read(brisk, "stale_frames_total") == 1
    assert read(brisk, "claimed_total", kind="workflow") == 2


async def test_a_clock_that_was_set_back_extends_all_leases_and_is_counted(brisk: Served, hire_at: Hire) -> None:
    worker = await hire_at(brisk, credit=1)
    await Flows(brisk.channel).create("one")
    await worker.take()

    ahead = update(lease_clock).values(last_tick=lease_now() + 3600 * SECOND)
    await brisk.app.db.run_tx(lambda tx: tx.execute(ahead).rowcount)

    await until(brisk, 1, "leases_extended_total")


async def test_calls_about_a_locked_task_are_undecided_and_then_take_the_slow_lane(
    start_server: StartServer, postgres_url: str, postgres: PostgresServer, hire_at: Hire
) -> None:
    server = await start_server(postgres_url)
    flows, worker = Flows(server.channel), await hire_at(server, credit=1)
    await flows.create("one")
    job = await worker.take()

    async with locked(postgres_url, job.task_id):
        sending = asyncio.create_task(flows.event("one", "go"))
        await postgres.wait_for_waiters(postgres_url, 1)
    await sending

    assert read(server, "undecided_total") >= GROUPS
    assert read(server, "group_calls_count", way="slow") == read(server, "group_calls_sum", way="slow") >= 1


async def test_a_group_that_was_rolled_back_is_measured_once(
    sqlite_server: Served, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hire_at(sqlite_server)
    run_group, attempts = committer.run_group, []

    def lose_first(*given: Any, **options: Any) -> Any:
        result = run_group(*given, **options)
        attempts.append(result)
        if len(attempts) == 1:
            raise LostRace
        return result

    before = read(sqlite_server, "group_calls_count", way="hot")
    monkeypatch.setattr(committer, "run_group", lose_first)
    await Flows(sqlite_server.channel).create("one")

    assert read(sqlite_server, "group_calls_count", way="hot") - before == len(attempts) - 1


def test_the_page_names_every_metric_and_every_label_that_is_served() -> None:
    metrics = Metrics()
    metrics.calls.labels("/stepwell.v1.ServerService/GetServerInfo", "OK")
    metrics.in_flight.labels("unary")
    metrics.database_faults.labels("full")
    served = {
        (family.name + ("_total" if family.type == "counter" else "")): family.samples[0].labels.keys() - {"le"}
        for family in metrics.registry.collect()
        if family.name.startswith("stepwell_")
    }

    page = (ROOT / "docs/operations/metrics.md").read_text()

    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in ROW.findall(page)} == served
    stages = re.findall(r"^\| `(\w+)` \|", page.partition("## Stages")[2], re.MULTILINE)
    assert stages == [stage.value for stage in Stage]
