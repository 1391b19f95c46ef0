"""What a run needs around it: the terms it works by, time, threads, and somebody to send its frames."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from stepwell.clocks import Clock
from stepwell.terms import Terms
from stepwell.threads import Pool
from stepwell.turns import Turns
from stepwell.v1 import workers_pb2 as pb

if TYPE_CHECKING:
    from stepwell.runs import Run


class Phase(Enum):
    """Where a run stands between the worker and the server."""

    HELD = auto()
    SUSPENDING = auto()  # Suspend is sent: nothing more until its Ack
    RELEASED = auto()  # in memory only, until a Task names it again
    FINISHING = auto()  # Finish is sent
    DROPPED = auto()  # over: nothing it does is reported


class Host(Protocol):
    """The worker, as a run sees it."""

    @property
    def terms(self) -> Terms:
        """The terms of the connection."""

    @property
    def clock(self) -> Clock:
        """The clock of timeouts and leases."""

    @property
    def turns(self) -> Turns:
        """Turns of the loop, to see a function come to rest."""

    @property
    def pool(self) -> Pool:
        """Where bodies run that are not async."""

    @property
    def is_draining(self) -> bool:
        """Whether the worker leaves: no further body may begin."""

    def send(self, frame: pb.WorkerFrame) -> None:
        """Send a frame with the next message."""

    def rested(self) -> None:
        """The run has said everything that there was to say."""

    def start_over(self, run: Run) -> None:
        """The run in memory has no ground any more: drop it, keep the task, and replay from what the server has."""

    def let_go(self, run: Run) -> None:
        """The run is no longer held: RELEASED with its memory, or DROPPED."""
