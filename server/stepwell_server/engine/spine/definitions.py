"""Definitions in force: they follow what living workers host, and what was put.

A rolling deploy changes a definition once, when the first new worker comes. A rollback changes it back, a minute after
the last new worker has gone. A worker that leaves decides nothing: the sweep of any replica finds that it has gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stepwell_server.domain.spine.definitions import Definition, in_force
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import declarations, handlers, sessions


def declare(tx: Tx, defined: Mapping[Handler, Definition]) -> frozenset[Handler]:
    """Store what a worker hosts, as far as it is news. Returns the handlers whose definition changed.

    Only a definition that was never seen before is brought into force here: it is the newest, so the rule chooses it.
    Which other one counts depends on workers that are away, and those may only be on their way back.
    """
    unseen = declarations.unknown(tx, defined)
    news = handlers.unnoted(tx, defined) | unseen
    if not news:
        return frozenset()
    handlers.register(tx, news)  # who writes waits for all claims of these that are under way
    unseen = declarations.unknown(tx, {handler: defined[handler] for handler in news})
    _add(tx, {handler: defined[handler] for handler in sorted(unseen, key=_by_name)}, put=False)
    return frozenset(unseen)


def put(tx: Tx, handler: Handler, definition: Definition) -> None:
    """Bring a definition into force until a newer one is declared, whatever workers host."""
    handlers.register(tx, [handler])
    _add(tx, {handler: definition}, put=True)


def settle(tx: Tx, hosted: Mapping[Handler, Collection[str]]) -> frozenset[Handler]:
    """Mend the rows of handlers where another definition is in force than should be. Returns these handlers.

    It locks rows only if some must be mended. A row that another transaction has locked is left to the next sweep.
    """
    wrong = _wrong(tx, declarations.contested(tx, hosted), hosted)
    if not wrong:
        return frozenset()
    locked = declarations.lock(tx, wrong)
    mended = _wrong(tx, locked, sessions.seen(tx).hosted)
    if mended:
        declarations.bring_into_force(tx, declarations.read(tx, mended))
    return frozenset(mended)


def _add(tx: Tx, defined: Mapping[Handler, Definition], *, put: bool) -> None:
    if defined:
        declarations.add(tx, defined, put=put)
        declarations.bring_into_force(tx, defined)


def _wrong(tx: Tx, of: Collection[Handler], hosted: Mapping[Handler, Collection[str]]) -> dict[Handler, str]:
    """Those of these handlers whose row and rule differ, with the hash that should be in force."""
    chosen = {
        handler: (declared.in_force, in_force(declared.all, hosted.get(handler, ()), declared.in_force))
        for handler, declared in declarations.of(tx, of).items()
    }
    return {handler: wanted for handler, (current, wanted) in chosen.items() if wanted not in (None, current)}


def _by_name(handler: Handler) -> tuple[str, str, str]:
    return handler.namespace, handler.kind, handler.name
