"""What a server asks its database, counted at the driver, by the label of the transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from stepwell_server.app import App
from stepwell_server.storage.database.database import Tx, TxOptions, Work
from stepwell_server.storage.database.hints import Hint

HINT = "hint"
"""The label of what is sent to other replicas, which is no transaction."""


@contextmanager
def counted(app: App) -> Iterator[Counter[str]]:
    """Count the statements of a server in this process, and the hints that it sends."""
    counts: Counter[str] = Counter()
    backend: Any = app.db.backend
    hints: Any = app._hints
    attempt, send = backend.attempt, hints.send

    async def labelled(work: Work[Any], options: TxOptions) -> Any:
        def named(tx: Tx) -> Any:
            tx.info["counts"] = (counts, options.label)
            try:
                return work(tx)
            finally:
                del tx.info["counts"]

        return await attempt(named, options)

    async def noted(hint: Hint) -> None:
        counts[HINT] += 1
        await send(hint)

    def count(connection: Any, _cursor: object, _statement: str, *_more: object) -> None:
        mine, label = connection.info.get("counts", (None, ""))
        if mine is counts:  # else it is another server's, or it only begins the transaction
            counts[label] += 1

    backend.attempt, hints.send = labelled, noted
    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", count)
        backend.attempt, hints.send = attempt, send
