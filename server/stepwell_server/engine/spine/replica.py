"""The parts of a replica that use cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.group import Committed
from stepwell_server.engine.spine.handout import Dispatcher
from stepwell_server.engine.spine.registry import Registry
from stepwell_server.engine.spine.wakes import WakeBus
from stepwell_server.storage.database.database import Database


@dataclass(frozen=True, slots=True)
class Spine:
    """What everything durable hangs on. `announce` tells all who wait what a transaction has changed."""

    db: Database
    committer: Committer
    bus: WakeBus
    dispatcher: Dispatcher
    registry: Registry
    announce: Callable[[Committed], None]
