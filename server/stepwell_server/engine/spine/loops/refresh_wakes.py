"""Read the next wakes of the noted handlers: one question, however many commits and subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.values.errors import DatabaseSlow, StepwellError
from stepwell_server.domain.values.tuning import DEFAULT
from stepwell_server.engine.spine.wakes import WakeBus, every
from stepwell_server.storage.database.database import Database, Tx, TxOptions
from stepwell_server.storage.spine import tasks, wakes
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake

PAUSE = 0.5
"""Seconds after a question that the database did not answer."""

_OPTIONS = TxOptions(label="refresh-wakes", read_only=True, reserved=True)


async def refresh_wakes(db: Database, bus: WakeBus, spacing: float = DEFAULT.wake_spacing) -> None:
    """Read the wakes of noted handlers, until cancelled. After a failure they are noted again."""
    while True:
        asked, mark = await bus.notes.take(), bus.notes.mark()
        began = asyncio.get_running_loop().time()
        try:
            found, at = await db.run_tx(partial(_ask, of=asked), _OPTIONS)
        except StepwellError as error:
            is_too_much = asked is None and isinstance(error, DatabaseSlow)  # else it would hold up all the others
            bus.notes.add(bus.served if is_too_much else asked)
            await asyncio.sleep(PAUSE)
            continue
        bus.refresh(found, at, mark, whole=every if asked is None else None)
        await asyncio.sleep(max(0.0, began + spacing - asyncio.get_running_loop().time()))


def _ask(tx: Tx, of: Sequence[Handler] | None) -> tuple[list[HandlerWake], Stamp]:
    return wakes.next_wakes(tx, of), tasks.stamp(tx)
