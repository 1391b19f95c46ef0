"""What work needs around it: the terms it goes by, time, threads, and somebody to send its frames."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.executions import Surroundings
from stepwell.worker.loop_turns import Turns
from stepwell.worker.server_terms import Terms

if TYPE_CHECKING:
    from stepwell.worker.run import Run


class Phase(Enum):
    """Where a run stands between the worker and the server."""

    HELD = auto()
    SUSPENDING = auto()  # Suspend is sent: nothing more until its Ack
    RELEASED = auto()  # in memory only, until a Task names it again
    FINISHING = auto()  # Finish is sent
    DROPPED = auto()  # over: nothing it does is reported


class Work(Protocol):
    """What a worker does under a lease, as the worker sees it: a run, or a job."""

    @property
    def task_id(self) -> int:
        """The task that is held."""

    @property
    def renewed_at(self) -> float:
        """When the lease was last renewed by a report, by the worker's clock."""

    @property
    def is_quiet(self) -> bool:
        """Whether a worker that leaves would interrupt nothing."""

    def acked(self, number: int, ack: pb.Ack) -> None:
        """A frame is durable."""

    def refused(self, number: int, reason: str, message: str) -> None:
        """A frame was refused."""

    def drop(self) -> None:
        """End the work in this process: stop what executes, report nothing any more."""

    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frames to send again after a reconnect, in order."""


class Host(Surroundings, Protocol):
    """The worker, as its work sees it."""

    @property
    def terms(self) -> Terms:
        """The terms of the connection."""

    @property
    def turns(self) -> Turns:
        """Turns of the loop, to see a function come to rest."""

    @property
    def is_draining(self) -> bool:
        """Whether the worker leaves: no further body may begin."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream: without one, what is sent now is sent again when there is."""

    def send(self, frame: pb.WorkerFrame) -> None:
        """Send a frame with the next message."""

    def rested(self) -> None:
        """The work has said everything that there was to say."""

    def start_over(self, run: Run) -> None:
        """The run in memory has no ground any more: drop it, keep the task, and replay from what the server has."""

    def let_go(self, work: Work) -> None:
        """The work is no longer held: it is over, or a run that is RELEASED with its memory."""
