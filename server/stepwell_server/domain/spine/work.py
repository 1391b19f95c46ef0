"""Work: what a held task advances, as one transaction sees it. A run is one kind of it, a job another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from stepwell_server.domain.namespaces import NamespaceLimits
from stepwell_server.domain.spine.frames import Frame, FrameAnswer, News
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import LeaseTimes
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.times import SECOND, Micros

TIMEOUT_MARGIN = 30 * SECOND
"""How much longer than its timeout an execution may be open before the server ends it: workers do it themselves."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for all work of a server."""

    limits: Limits = field(default_factory=Limits)
    times: LeaseTimes = field(default_factory=LeaseTimes)
    timeout_margin: Micros = TIMEOUT_MARGIN
    namespaces: Mapping[str, NamespaceLimits] = field(default_factory=dict)
    """Lower limits of namespaces, as far as they are known."""
    registered: Set[Handler] = frozenset()
    """Handlers that a worker hosts or that have a target, as far as is known."""

    def limits_of(self, namespace: str) -> NamespaceLimits:
        """The limits of a namespace, or the server's where it is not known."""
        return self.namespaces.get(namespace) or NamespaceLimits.of_server(self.limits)


class Ending(Protocol):
    """How a piece of work ended for good."""

    @property
    def fence(self) -> int | None:
        """The lease whose holder reported it. None: it ended by itself."""


class Work(Protocol):
    """A working copy of what a task advances. It is read under the task's lock and written once."""

    task: Task

    @property
    def ending(self) -> Ending | None:
        """How it ended for good, in this transaction."""

    @property
    def has_parked(self) -> bool:
        """Whether a frame of its worker has parked it, in this transaction."""

    @property
    def is_contradicted(self) -> bool:
        """Whether its worker reported an execution that no longer counts, and has gone on with its result."""

    def begin_batch(self, frames: Sequence[Frame]) -> None:
        """Learn which frames of one call follow."""

    def apply(self, frame: Frame, session_id: str) -> FrameAnswer:
        """Take a frame over. A refused frame uses its number up."""

    def repeat(self, frame: Frame) -> FrameAnswer:
        """Answer a frame that was applied before."""

    def news(self, answers: tuple[FrameAnswer, ...], *, again: bool) -> News:
        """End what is over by itself, and say so; all of it again if the worker may have missed some."""

    def end_overtime(self) -> bool:
        """End executions that take too long, for a holder without a stream. True: the holder has to ask."""
