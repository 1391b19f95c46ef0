"""Use cases of the clock."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.clock import ClockReading
from stepwell_server.domain.times import Micros
from stepwell_server.engine.requests import Request
from stepwell_server.storage import clock as store
from stepwell_server.storage import requests
from stepwell_server.storage.database import READ, Database, Tx


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock that decides: read it, and where it is virtual, move it."""

    db: Database

    async def read(self) -> ClockReading:
        """Both clocks, now."""
        return await self.db.run_tx(store.read, READ)

    async def advance(self, request: Request, *, by: Micros | None = None, to: Micros | None = None) -> Micros:
        """Move a virtual clock forward and return where it stands."""
        key = request.key("")

        def move(tx: Tx) -> Micros:
            target = store.lock(tx).moved(by=by, to=to)
            store.move(tx, target)
            return target

        def work(tx: Tx) -> Micros:
            return requests.once(tx, key, lambda: move(tx), dump=int, load=int)

        return await self.db.run_tx(work)
