"""Namespaces and registered handlers as this replica knows them, so that a hot call reads none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stepwell_server.domain.namespaces import NamespaceLimits
from stepwell_server.domain.spine.definitions import Definition
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.values.errors import NamespaceNotFound
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.times import DAY, Micros
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.wakes import DatabaseTime
from stepwell_server.storage import namespaces
from stepwell_server.storage.database.database import READ, Database, Tx
from stepwell_server.storage.spine import handlers

FRESH = 5.0
"""Seconds for which the limits of a namespace are believed, and the definition of a handler."""
IN_USE: Micros = DAY
"""For so long it is believed that a name is there which was in use: no name is forgotten that soon."""


class Registry:
    """A cache in front of the database."""

    def __init__(self, db: Database, limits: Limits, kinds: Kinds, time: DatabaseTime) -> None:
        self._db = db
        self._kinds = kinds
        self.limits = limits
        self._time = time
        self._in_use_until: dict[Handler, Micros] = {}
        self.namespaces: dict[str, NamespaceLimits] = {}
        """Limits of the namespaces that were asked for, with the server's where they set none."""
        self._believed_until: dict[str, float] = {}
        self._definitions: dict[Handler, tuple[Definition, float]] = {}
        """Definitions in force, and until when they are believed."""
        self._readings: dict[Handler, object] = {}
        """The newest reading of a definition that is under way, unless the definition has changed since it began."""

    def forget(self, namespace: str) -> None:
        """The namespace was changed here: ask for its limits again."""
        self._believed_until.pop(namespace, None)

    def redefined(self, changed: Iterable[Handler] | None) -> None:
        """These handlers may have other definitions now; None: any may."""
        for handler in list(self._definitions) if changed is None else changed:
            self._definitions.pop(handler, None)
        for handler in list(self._readings) if changed is None else changed:
            self._readings.pop(handler, None)

    async def require(self, handler: Handler) -> Definition:
        """The definition in force, which may be some seconds old where no hint has come of a newer one.

        Refuses a handler that no worker ever registered, or none for so long that it is forgotten.
        """
        now = asyncio.get_running_loop().time()
        definition, believed_until = self._definitions.get(handler, (None, 0.0))
        if definition is None or believed_until <= now:
            reading = self._readings[handler] = object()
            try:
                found = await self._db.run_tx(lambda tx: handlers.registered(tx, handler), READ)
            finally:
                is_newest = self._readings.get(handler) is reading
                if is_newest:
                    del self._readings[handler]
            await self._check(handler, found is not None)
            assert found is not None
            definition = found.definition or Definition.of({}, self._kinds[handler.kind].defaults)
            if is_newest:
                self._definitions[handler] = definition, now + FRESH
        return definition

    async def use(self, handler: Handler) -> None:
        """Refuse a handler as `require` does. A handler that is not refused stays until work for it is stored."""
        if not self._is_in_use(handler):
            await self.require(handler)  # it writes nothing, and most that are refused are refused here
            await self._check(handler, await self._db.run_tx(lambda tx: handlers.use(tx, handler)))
            self._believe(handler)

    async def _check(self, handler: Handler, is_registered: bool) -> None:
        if not is_registered:
            await self.limits_of(handler.namespace)
            raise self._kinds[handler.kind].missing(handler)

    def _is_in_use(self, handler: Handler) -> bool:
        return self._time.now() < self._in_use_until.get(handler, 0)

    def _believe(self, handler: Handler) -> None:
        self._in_use_until[handler] = self._time.now() + IN_USE

    async def name(self, handler: Handler) -> None:
        """Note a handler that no worker needs to host; refuse one name too many."""
        if self._is_in_use(handler):
            return

        def work(tx: Tx) -> None:
            handlers.admit(tx, handler.namespace, [handler], self.limits.handlers)
            handlers.note(tx, [handler])

        await self._db.run_tx(work)
        self._believe(handler)

    async def limits_of(self, namespace: str) -> NamespaceLimits:
        """The limits of a namespace, with the server's where it sets none. An unknown namespace is refused."""
        now = asyncio.get_running_loop().time()
        if now < self._believed_until.get(namespace, 0.0):
            return self.namespaces[namespace]
        found = await self._db.run_tx(lambda tx: namespaces.get(tx, namespace), READ)
        if found is None:
            raise NamespaceNotFound("there is no such namespace", namespace=namespace)
        own, server = found.spec.limits, self.limits
        self.namespaces[namespace] = limits = NamespaceLimits(
            max_payload_bytes=own.max_payload_bytes or server.payload_bytes,
            max_steps_per_run=own.max_steps_per_run or server.steps_per_run,
            max_pending_events=own.max_pending_events or server.pending_events,
        )
        self._believed_until[namespace] = now + FRESH
        return limits
