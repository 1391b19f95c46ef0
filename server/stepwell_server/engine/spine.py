"""The parts of a replica that use cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell_server.engine.committer import Committer
from stepwell_server.engine.dispatch import Dispatcher
from stepwell_server.engine.groups import Committed
from stepwell_server.engine.registry import Registry
from stepwell_server.engine.wakes import WakeBus
from stepwell_server.storage.database import Database


@dataclass(frozen=True, slots=True)
class Spine:
    """What everything durable hangs on. `announce` tells all who wait what a transaction has changed."""

    db: Database
    committer: Committer
    bus: WakeBus
    dispatcher: Dispatcher
    registry: Registry
    announce: Callable[[Committed], None]
