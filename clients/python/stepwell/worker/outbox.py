"""The next message of a stream: frames, and the arrivals of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.lease import Lease


class Outbox:
    """Frames that are ready to be sent. Between two streams none is kept: those that matter are sent again."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None  # called when there is something to send
        self.is_open = False
        self._frames: list[pb.WorkerFrame] = []
        self._arrived: list[Lease] = []  # to be acknowledged with the next message
        self._acking: list[Lease] = []  # acknowledged by the message that is being written

    @property
    def is_acking(self) -> bool:
        """Whether tasks are acknowledged by a message that is being written."""
        return bool(self._acking)

    def open(self) -> None:
        """There is a stream."""
        self._frames, self.is_open = [], True

    def close(self) -> None:
        """The stream is gone, with everything that was ready for it."""
        self.is_open = False
        self._frames, self._arrived, self._acking = [], [], []

    def send(self, frame: pb.WorkerFrame) -> None:
        """Send a frame with the next message."""
        if self.is_open:
            self._frames.append(frame)
            self.wake()

    def acknowledge(self, lease: Lease) -> None:
        """Say with the next message that a task has arrived."""
        self._arrived.append(lease)
        lease.say(task_ack=pb.TaskAck())

    def take(self) -> list[pb.WorkerFrame]:
        """Everything that is ready."""
        frames, self._frames = self._frames, []
        self._acking, self._arrived = self._acking + self._arrived, []
        return frames

    def written(self) -> list[Lease]:
        """Note that the frames taken last are on their way. Returns the leases that they acknowledge."""
        acking, self._acking = self._acking, []
        return acking

    def withdraw(self, leases: Iterable[Lease]) -> list[Lease]:
        """Acknowledge none of these leases. Those that no message acknowledges yet are returned."""
        unsaid = [lease for lease in leases if lease not in self._acking]
        ids = {lease.task_id for lease in unsaid}
        self._arrived = []
        self._frames = [frame for frame in self._frames if not (frame.HasField("task_ack") and frame.task_id in ids)]
        return unsaid
