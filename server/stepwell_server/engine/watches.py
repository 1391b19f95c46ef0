"""Watches: who wants to know when an instance changes. Fed by commits, hints and the sweep; states are conflated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from stepwell_server.domain.errors import StepwellError
from stepwell_server.domain.tasks import Handler
from stepwell_server.domain.workflows import Instance
from stepwell_server.storage import workflows
from stepwell_server.storage.database import READ, Database

PAUSE = 0.5
"""Seconds before the database is asked again after it did not answer."""


@dataclass(slots=True, eq=False)
class Watcher:
    """Somebody who follows instances. It gets the newest state of each that changed, and none in between."""

    known: dict[int, int] = field(default_factory=dict)
    """Newest revision it has seen, by instance."""
    changed: dict[int, Instance] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self) -> list[Instance]:
        """The instances that changed, once one has."""
        await self.ready.wait()
        self.ready.clear()
        taken, self.changed = self.changed, {}
        self.known.update({one.id: one.revision for one in taken.values() if one.id in self.known})
        return list(taken.values())


class Watches:
    """All watchers of a replica. One question to the database covers everybody's instances that may have changed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._watchers: dict[int, set[Watcher]] = {}
        self._handlers: dict[int, Handler] = {}
        self._dirty: set[int] = set()
        self._any_dirty = asyncio.Event()

    def follow(self, watcher: Watcher, instance: Instance, known_revision: int) -> None:
        """Tell the watcher of this instance from now on, at once if it is newer than what it knows."""
        self._watchers.setdefault(instance.id, set()).add(watcher)
        self._handlers[instance.id] = instance.key.handler
        watcher.known[instance.id] = known_revision
        self._offer(watcher, instance)
        self.note([instance.id])  # it may have changed since it was read

    def drop(self, watcher: Watcher, instance_ids: Iterable[int]) -> None:
        """Tell the watcher of these no longer."""
        for one in list(instance_ids):
            watcher.known.pop(one, None)
            watcher.changed.pop(one, None)
            others = self._watchers.get(one)
            if others is not None:
                others.discard(watcher)
                if not others:
                    del self._watchers[one], self._handlers[one]

    def note(self, instance_ids: Iterable[int]) -> None:
        """These instances have changed."""
        self._dirty.update(one for one in instance_ids if one in self._watchers)
        if self._dirty:
            self._any_dirty.set()

    def note_handlers(self, handlers: Iterable[Handler] | None) -> None:
        """Instances of these handlers may have changed elsewhere; None: any may have."""
        wanted = None if handlers is None else set(handlers)
        self.note([one for one, handler in self._handlers.items() if wanted is None or handler in wanted])

    async def run(self) -> None:
        """Read what has changed and tell whoever follows it, until cancelled."""
        while True:
            await self._any_dirty.wait()
            self._any_dirty.clear()
            asked, self._dirty = self._dirty, set()
            try:
                found = await self._db.run_tx(partial(workflows.get_many, ids=asked), READ)
            except StepwellError:
                self._dirty |= asked
                self._any_dirty.set()
                await asyncio.sleep(PAUSE)
                continue
            for one in found.values():
                for watcher in self._watchers.get(one.id, ()):
                    self._offer(watcher, one)

    def _offer(self, watcher: Watcher, instance: Instance) -> None:
        if instance.revision > watcher.known.get(instance.id, 0):
            watcher.changed[instance.id] = instance
            watcher.ready.set()
