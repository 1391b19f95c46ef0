"""A replica: the parts that use cases share, and how they hear of commits, of their own and of other replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.express import Express
from stepwell_server.engine.spine.handout import Handout
from stepwell_server.engine.spine.kinds import Committed, Kinds
from stepwell_server.engine.spine.loops.prune import prune
from stepwell_server.engine.spine.loops.refresh_wakes import refresh_wakes
from stepwell_server.engine.spine.loops.relay_hints import HintRelay
from stepwell_server.engine.spine.registry import Registry
from stepwell_server.engine.spine.timings import Timings
from stepwell_server.engine.spine.wakes import DatabaseTime, WakeBus
from stepwell_server.storage.database.database import READ, Database
from stepwell_server.storage.database.hints import Hint, Hints


class Replica:
    """The parts that all use cases share. It knows no primitive: `kinds` has them."""

    def __init__(
        self,
        db: Database,
        hints: Hints,
        kinds: Kinds,
        rules: Rules,
        *,
        timings: Timings,
        virtual: bool,
        embedded: bool,
        tuning: Tuning = DEFAULT,
        express: bool = False,
    ) -> None:
        self.db = db
        self.hints = hints
        self.kinds = kinds
        self.tuning = tuning
        self.bus = WakeBus(DatabaseTime(virtual=virtual))
        self.registry = Registry(db, rules.limits, kinds, self.bus.time)
        self.rules = replace(rules, namespaces=self.registry.namespaces, registered=self.bus.registered)
        self.relay = HintRelay(hints)
        self.committer = Committer(db, kinds, self.rules, self.announce, self.bus.notes.mark, timings, tuning)
        if express:
            self.committer.express = Express(kinds, self.rules, self.bus.time.stamp)
        self.handout = Handout(self.committer, self.bus, embedded=embedded)

    def announce(self, committed: Committed) -> None:
        """Tell all who wait what a transaction of this replica has changed."""
        self.registry.redefined(committed.redefined)
        self.bus.learn(committed)
        self.relay.note(committed, self.kinds.publish(committed))
        self.handout.deliveries.deliver(committed)
        self.handout.holders.keep_images(committed.images)
        self.handout.holders.look(committed.must_look)

    def heard(self, hint: Hint) -> None:
        """Tell all who wait what another replica has changed."""
        self.registry.redefined(hint.handlers)
        self.bus.notes.add(hint.handlers)
        self.handout.holders.forget_images(hint.tasks)
        self.handout.holders.look(hint.tasks)
        if hint.order is not None:
            self.handout.take_order(hint.order)
        self.kinds.heard(None if hint.handlers is None else hint.moved)

    async def assignments(self, tasks: Sequence[Task]) -> list[Assignment]:
        """These held tasks with all that their workers must know."""
        if not tasks:
            return []
        unread = [Assignment(task, None) for task in tasks]
        return await self.db.run_tx(lambda tx: self.kinds.with_inputs(tx, unread), READ)

    def drain(self) -> None:
        """Hand out nothing more, and end the waits of those who follow a kind: the replica goes away."""
        self.handout.close()
        self.kinds.drain()

    def loops(self, names_kept: Micros) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The loops that run as long as the replica, by name. Unused names of handlers are kept for `names_kept`."""
        return {
            "committer": self.committer.run,
            "handout": self.handout.run,
            "prune": lambda: prune(self.db, self.kinds, names_kept, self.tuning),
            "refresh_wakes": lambda: refresh_wakes(self.db, self.bus, self.tuning.wake_spacing),
            "send_hints": self.relay.run,
            "hear_hints": lambda: self.hints.listen(self.heard),
            **self.kinds.loops(),
        }
