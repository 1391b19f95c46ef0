"""What several scenarios share."""

from __future__ import annotations

from tests.chaos.faults.processes import Kill
from tests.chaos.site.site import Topology
from tests.chaos.workload.workflows.load import Orders

SQLITE = Topology("sqlite", servers=1)
KILLS = (Kill("F01", "worker"), Kill("F05", "server"))
LONG_BODIES = (Orders(body_ms=2000.0),)
SMALL = (Orders(instances=200, seconds=30.0),)
