"""The contract of a worker and its work: the work under a lease, and the worker around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from stepwell.kinds import Kind
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.executions import Surroundings
from stepwell.worker.loop_turns import Turns
from stepwell.worker.outgoing import Reports
from stepwell.worker.server_terms import Terms
from stepwell.workflows.handle import WorkflowCaller

MemoryKey: TypeAlias = tuple[Kind, str, str]
"""Kind and name of a handler, and the key of a task."""


class Memory(NamedTuple):
    """The key under which suspended work is remembered, and about how many bytes of users' data it keeps."""

    key: MemoryKey
    bytes: int


class Phase(Enum):
    """Where a run stands between the worker and the server."""

    HELD = auto()
    SUSPENDING = auto()  # Suspend is sent: nothing more until its Ack
    RELEASED = auto()  # in memory only, until a Task names it again
    FINISHING = auto()  # Finish is sent
    DROPPED = auto()  # over: nothing it does is reported


class Work(ABC):
    """Work under a lease: a run, or a job. Work without steps hears nothing of steps."""

    has_state: ClassVar[bool] = False
    """Whether a Task may leave out what the server keeps of it. Otherwise all there is comes with the Task."""
    task_id: int
    """The task that is held."""
    renewed_at: float
    """When the lease was last renewed by a report, by the worker's clock."""

    @classmethod
    @abstractmethod
    def for_task(cls, host: Host, definition: Any, task: pb.Task, remembered: Work | None) -> Work | None:
        """The work of a task: what is remembered of it, or new work. None if all of its state is needed first."""

    @property
    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether a worker that leaves would interrupt nothing."""

    @property
    def remembered_as(self) -> Memory | None:
        """The key of work that is no longer held and can go on from memory. None: it cannot."""
        return None

    @abstractmethod
    def attach(self, task_id: int, fence: int, task: pb.Task, number: int = 0) -> None:
        """Hold the task from now on. `number` is that of the last frame that was sent under this fence."""

    @abstractmethod
    def acked(self, number: int, ack: pb.Ack) -> None:
        """A frame is durable."""

    @abstractmethod
    def refused(self, number: int, reason: str, message: str) -> None:
        """A frame was refused."""

    @abstractmethod
    def drop(self) -> None:
        """End the work in this process: stop what executes, report nothing any more."""

    @abstractmethod
    def unacked_frames(self) -> Iterator[pb.WorkerFrame]:
        """The frames to send again after a reconnect, in order."""

    def resolved(self, resolved: pb.Resolved) -> None:
        """Steps have changed at the server."""

    def cancel_step(self, name: str) -> None:
        """The server has timed out the body of a step."""

    def name_bodies(self) -> None:
        """Say which bodies of steps execute, if no frame has said so yet."""

    def ask_again(self) -> None:
        """Ask again for bodies of steps that a pause holds up."""


class StatefulWork(Work):
    """Work that can begin again with what the server has of it."""

    has_state = True

    @abstractmethod
    def hand_over(self) -> Reports:
        """Drop the work, and return its frames: they are to be answered, and set nothing off."""


class Host(Surroundings, Protocol):
    """The worker, as its work sees it."""

    @property
    def client(self) -> WorkflowCaller | None:
        """The client that workflow functions get."""

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

    def start_over(self, work: StatefulWork) -> None:
        """The work in memory has no ground any more: drop it, keep the task, and begin with what the server has."""

    def let_go(self, work: Work) -> None:
        """The work is no longer held: it is over, or goes on from memory when its task comes again."""
