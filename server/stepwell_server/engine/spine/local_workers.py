"""Places: the workers that are connected to this replica, and what is on its way to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepwell_server.domain.spine.frames import RunNews
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import Step
from stepwell_server.engine.spine.claims import Handed
from stepwell_server.engine.spine.inbox import Sender


@dataclass(frozen=True, slots=True)
class Delivery:
    """A task on its way to a worker, with all that the worker must know."""

    handed: Handed
    steps: tuple[Step, ...]

    @property
    def held(self) -> Held:
        """The lease."""
        return Held(self.handed.task.id, self.handed.task.fence)

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return self.handed.size + sum(step.size for step in self.steps)


@dataclass(slots=True, eq=False)
class Place:
    """A worker that is connected to this replica."""

    owner: Owner
    handlers: frozenset[Handler]
    deliver: Callable[[Sequence[Delivery]], None]
    tell: Callable[[Held, RunNews], None]
    credits: int = 0
    lent: int = 0
    """Credits that a claim has on the table."""
    held: dict[int, Held] = field(default_factory=dict)
    timers: dict[int, Micros] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Tasks about which an answer was lost: what it said must be said again."""
    births: int = 0
    """Newborns that are on their way to it."""
    has_lost_claim: bool = False
    """The answer to a claim was lost: it may hold what it never heard of, and takes nothing until that is returned."""
    namespace: str = ""
    """Of its session. Empty: it works for the server itself."""
    is_full: bool = False
    """It does not read what it was sent, so it is sent nothing that can wait."""
    resting: set[Handler] = field(default_factory=set)
    """Hosted, and not taken for now."""
    shares: dict[str, int] = field(default_factory=dict)
    """How many tasks more it takes of a namespace, where that is bounded."""

    @property
    def wanted(self) -> frozenset[Handler]:
        """The handlers that it takes tasks of now."""
        full = {namespace for namespace, left in self.shares.items() if left <= 0}
        if not full and not self.resting:
            return self.handlers
        return frozenset(one for one in self.handlers - self.resting if one.namespace not in full)

    @property
    def sender(self) -> Sender:
        """Whose turn it is when something of its leases is committed."""
        return Sender(self.namespace, self.owner.session_id)

    @property
    def takes_more(self) -> bool:
        """Whether it can be given tasks."""
        return self.credits > 0 and not self.has_lost_claim and not self.is_full
