"""A short form of the chaos runs, part of every change: whole sites are broken, and every promise is checked.

Bounds are those of a busy machine. What they cannot show in seconds, `make chaos` shows in minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checker import checker
from tests.chaos.facts import records
from tests.chaos.faults.database import DatabaseRestart
from tests.chaos.faults.network import Partition, Storm
from tests.chaos.faults.processes import Drain, Freeze, Kill
from tests.chaos.run import Run
from tests.chaos.scenarios.scenario import Cycle, Scenario
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

WORKLOAD = (Orders(instances=40, seconds=6.0, body_ms=400.0, nap_s=(0.1, 1.0), lifecycle=0.2, hasty=0.1, sleepers=2),)
SEED = 7

ON_POSTGRESQL = Scenario(
    "soup-postgresql",
    "two replicas, a database that crashes, and everybody dies, freezes or is cut off once",
    Topology("postgresql", servers=2, workers=3, lease=2.0, store={"execute_then_fail": 0.02}),
    WORKLOAD,
    schedule=(
        Cycle((Kill("F01", "worker"),), every=0.5),
        Cycle((DatabaseRestart("F20"),), every=-0.5),
        Cycle((Kill("F05", "server"),), every=0.5),
        Cycle((Storm("F28", "server-*/database", "cut_reply", 0.5, 2, {"after": "COMMIT", "odds": 0.05}),), every=0.3),
        Cycle((Freeze("F02", "worker", 1.5),), every=0.3),
        Cycle((Partition("F51", "worker", "s2c", 1.5),), every=0.1),
    ),
    drain_leases=60.0,
    patience=15.0,
)
ON_SQLITE = Scenario(
    "soup-sqlite",
    "one server on a file, and everybody dies or leaves",
    Topology("sqlite", servers=1, workers=3, lease=2.0, store={"execute_then_fail": 0.02}),
    WORKLOAD,
    schedule=(
        Cycle((Kill("F01", "worker"),), every=0.5),
        Cycle((Kill("F05", "server"),), every=1.0),
        Cycle((Freeze("F02", "worker", 1.5),), every=0.3),
        Cycle((Drain("F04", "worker"),), every=0.3),
        Cycle((Drain("F07", "server"),), every=0.1),
    ),
    drain_leases=60.0,
    patience=15.0,
)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("scenario", [ON_SQLITE, ON_POSTGRESQL], ids=lambda scenario: scenario.name)
async def test_every_promise_is_kept_when_things_die(scenario: Scenario, tmp_path: Path) -> None:
    said: list[str] = []

    await Run(scenario, SEED, tmp_path, said.append).execute()

    verdict = checker.check(records.load(tmp_path))
    assert verdict.status == "valid", f"{verdict}\n{said}"
