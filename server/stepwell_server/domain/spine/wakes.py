"""Wakes as dispatchers see them: which tasks they look at, and when something can be claimed next."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.errors import InvalidField
from stepwell_server.domain.values.names import NAME_LENGTH
from stepwell_server.domain.values.times import Micros

MOST_NAMES = 100


@dataclass(frozen=True, slots=True)
class WakeFilter:
    """Which tasks of a namespace count."""

    namespace: str
    kinds: frozenset[TaskKind] = frozenset()
    """None: all."""
    names: frozenset[str] = frozenset()
    """None: all."""

    def check(self) -> None:
        """Refuse more names than can be looked for, and what cannot be one."""
        if len(self.names) > MOST_NAMES:
            raise InvalidField(f"at most {MOST_NAMES} names can be given", field="names", limit=MOST_NAMES)
        if not all(name.isascii() and len(name) <= NAME_LENGTH for name in self.names):
            raise InvalidField(f"a name has at most {NAME_LENGTH} ASCII characters", field="names", limit=NAME_LENGTH)

    def matches(self, handler: Handler) -> bool:
        """Whether tasks of this handler count."""
        return (
            handler.namespace == self.namespace
            and (not self.kinds or handler.kind in self.kinds)
            and (not self.names or handler.name in self.names)
        )


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """Hand out what is due: of these tasks, so many, each run with so many steps (0: as many as it likes)."""

    wanted: WakeFilter
    max_tasks: int
    max_steps: int = 0


@dataclass(frozen=True, slots=True)
class Wake:
    """When something can be claimed next, as of a change that this replica has seen."""

    number: int
    now: Micros
    wake_at: Micros | None
    """None: nothing waits."""
    unserved: tuple[tuple[Handler, Micros], ...] = ()
    """Handlers without a connected worker that have something due, and since when; the oldest first."""

    def says_the_same(self, other: Wake) -> bool:
        """Whether a follower that knows the other wake learns nothing from this one."""
        return (self.wake_at, self.unserved) == (other.wake_at, other.unserved)
