"""Watches: who wants to know when an instance changes. Fed by commits, hints and the sweep; states are conflated."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.values.pages import in_parts
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.domain.workflows.instances import Head, Instance, InstanceKey
from stepwell_server.engine.spine.waits import Waits
from stepwell_server.engine.workflows.reads import Reads
from stepwell_server.storage.database.database import READ, Database, Tx
from stepwell_server.storage.workflows import instances as workflows

PAUSE = 0.5
"""Seconds before the database is asked again after it did not answer."""
REMEMBERED = 20_000
"""Changes that are remembered, for those who begin to follow an instance that they have just read."""
MOST_NEWBORN = 5_000
"""Instances that were just created and are remembered for their creators, who will follow them next."""


@dataclass(slots=True, eq=False)
class Watcher:
    """Somebody who follows instances. It learns of each that changed, and reads its newest state when it has room."""

    with_steps: bool = False
    """It also wants to know when only steps or events changed."""
    known: dict[int, int] = field(default_factory=dict)
    """Newest revision it has seen, by instance."""
    changed: dict[int, Head] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_draining: bool = False
    """The replica goes away."""

    async def take(self) -> list[tuple[Head, int]]:
        """Where the instances stand that changed, once one has, each with the revision that was known before."""
        await self.ready.wait()
        self.ready.clear()
        taken, self.changed = self.changed, {}
        changes = [(one, self.known[one.id]) for one in taken.values()]
        self.known.update({one.id: one.revision for one in taken.values()})
        return changes

    def saw(self, instance: Instance) -> None:
        """Know the state that was read of an instance, which can be newer than the one that was told."""
        if instance.revision > self.known.get(instance.id, instance.revision):
            self.known[instance.id] = instance.revision
        told = self.changed.get(instance.id)
        if told is not None and told.revision <= instance.revision:
            del self.changed[instance.id]

    def drain(self) -> None:
        """Learn that the replica goes away."""
        self.is_draining = True
        self.ready.set()


class Watches:
    """All watchers of a replica. One question to the database covers everybody's instances that may have changed."""

    def __init__(self, db: Database, tuning: Tuning = DEFAULT) -> None:
        self._db = db
        self._watchers: dict[int, set[Watcher]] = {}
        self._dirty: set[int] = set()
        self._any_dirty = asyncio.Event()
        self._number = 0
        self._recent: OrderedDict[int | None, int] = OrderedDict()
        self._newborn: OrderedDict[InstanceKey, tuple[Head, int]] = OrderedDict()
        self.reads = Reads(self.read)
        self.waits = Waits(tuning.drain_wait)

    def mark(self) -> int:
        """To be taken before an instance is read that shall be followed: what changes from now on is not missed."""
        return self._number

    def bear(self, instance: Instance, mark: int) -> None:
        """Remember an instance that was just created, and a mark from before, for its creator to follow it unread."""
        self._newborn[instance.key] = (instance.head, mark)
        if len(self._newborn) > MOST_NEWBORN:
            self._newborn.popitem(last=False)

    def take_newborn(self, key: InstanceKey) -> tuple[Head, int] | None:
        """Where an instance stood that was just created, and the mark, both to be followed from: once."""
        return self._newborn.pop(key, None)

    def follow(self, watcher: Watcher, head: Head, known_revision: int, mark: int) -> None:
        """Tell the watcher of this instance from now on, at once if it is newer than what it knows."""
        self._watchers.setdefault(head.id, set()).add(watcher)
        watcher.known[head.id] = known_revision
        if self.waits.is_draining:
            watcher.drain()
        self._offer(watcher, head)
        if max(self._recent.get(head.id, -1), self._recent.get(None, -1), self._number - REMEMBERED) > mark:
            self._ask([head.id])

    def drain(self) -> None:
        """Tell everybody that the replica goes away, also those who come now."""
        self.waits.drain()
        for watcher in {one for watchers in self._watchers.values() for one in watchers}:
            watcher.drain()

    def drop(self, watcher: Watcher, instance_ids: Iterable[int]) -> None:
        """Tell the watcher of these no longer."""
        for one in list(instance_ids):
            watcher.known.pop(one, None)
            watcher.changed.pop(one, None)
            others = self._watchers.get(one)
            if others is not None:
                others.discard(watcher)
                if not others:
                    del self._watchers[one]

    def note(self, statuses: Iterable[int], runs: Iterable[int] = (), ended: Mapping[int, Head] | None = None) -> None:
        """The first have another status; of the others, steps or events may have changed. Those that ended are here."""
        for one in statuses:
            self._remember(one)
            if one in self._watchers:
                if ended and one in ended:
                    self._offer_to_all(ended[one])
                else:
                    self._dirty.add(one)
        self._dirty.update(one for one in runs if any(each.with_steps for each in self._watchers.get(one, ())))
        if self._dirty:
            self._any_dirty.set()

    def note_all(self) -> None:
        """Any of them may have changed elsewhere."""
        self._remember(None)
        self._ask(self._watchers)

    async def run(self) -> None:
        """Read what has changed and tell whoever follows it, until cancelled."""
        while True:
            await self._any_dirty.wait()
            self._any_dirty.clear()
            asked, self._dirty = self._dirty, set()
            try:
                found = await self._db.run_tx(partial(workflows.heads, ids=list(asked)), READ)
            except StepwellError:
                self._ask(asked)
                await asyncio.sleep(PAUSE)
                continue
            for one in found.values():
                self._offer_to_all(one)

    async def read(self, instance_ids: Sequence[int]) -> AsyncIterator[Instance]:
        """These instances as they are now, as many at a time as fit into a message, without those that are gone."""
        if not instance_ids:
            return
        parts, found = await self._db.run_tx(partial(_read_first, ids=instance_ids), READ)
        for number, part in enumerate(parts):
            if number:
                found = await self._db.run_tx(partial(workflows.get_many, ids=part), READ)
            for one in part:
                if one in found:
                    yield found.pop(one)

    def _ask(self, instance_ids: Iterable[int]) -> None:
        self._dirty.update(instance_ids)
        if self._dirty:
            self._any_dirty.set()

    def _remember(self, change: int | None) -> None:
        self._number += 1
        self._recent[change] = self._number
        self._recent.move_to_end(change)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def _offer_to_all(self, head: Head) -> None:
        for watcher in self._watchers.get(head.id, ()):
            self._offer(watcher, head)

    def _offer(self, watcher: Watcher, head: Head) -> None:
        newest = watcher.changed.get(head.id)
        if head.revision > max(watcher.known.get(head.id, 0), newest.revision if newest else 0):
            watcher.changed[head.id] = head
            watcher.ready.set()


def _read_first(tx: Tx, ids: Sequence[int]) -> tuple[list[list[int]], dict[int, Instance]]:
    """Which of these instances fit into a message together, and the first of them."""
    if len(ids) == 1:
        return [[*ids]], workflows.get_many(tx, ids)
    sizes = workflows.sizes(tx, ids)
    parts = list(in_parts({one: sizes[one] for one in ids if one in sizes}, PART_BYTES))
    return parts, workflows.get_many(tx, parts[0]) if parts else {}
