"""The description of this replica."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.times import Micros
from stepwell_server.storage.database import clock
from stepwell_server.storage.database.database import READ, Database
from stepwell_server.storage.database.hints import Hints
from stepwell_server.storage.deployments import Deployment


@dataclass(frozen=True, slots=True)
class Identity:
    """Facts about this process that hold from its start to its end."""

    version: str
    replica_id: str
    started_at: Micros
    dispatch_mode: str
    deployment: Deployment
    limits: Limits


@dataclass(frozen=True, slots=True)
class Server:
    """The replica, and the database behind it."""

    db: Database
    replica: Identity
    hints: Hints

    @property
    def hints_work(self) -> bool:
        """Whether this replica hears of the others' commits at once."""
        return self.hints.working

    async def clock(self) -> ClockReading:
        """The database's clock, which also proves that the database answers."""
        return await self.db.run_tx(clock.read, READ)
