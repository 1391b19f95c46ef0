"""One lease: the task, the work under it, and what the server says about both."""

from __future__ import annotations

from typing import Any, Protocol

from stepwell.errors import reason_name
from stepwell.logs import ERROR, INFO, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.errors_pb2 import ItemError
from stepwell.worker.host import Host, StatefulWork, Work
from stepwell.worker.outgoing import Reports
from stepwell.worker.work import has_state


class Holder(Host, Protocol):
    """The worker, as its leases see it."""

    def acknowledge(self, lease: Lease) -> None:
        """Say that the task has arrived."""

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is held."""

    def is_hosted(self, handler: pb.HandlerRef) -> bool:
        """Whether there is a definition for the task's handler."""

    def work_for(self, task: pb.Task) -> Work | None:
        """The work of a hosted task. None if all of its state is needed first."""

    def remove(self, lease: Lease) -> None:
        """The lease is no longer held."""


class Lease:
    """A task that is leased to this worker. Its work is missing until all of its state is there."""

    __slots__ = ("_holder", "_renewed_at", "_reports", "_resolved", "_task", "fence", "is_acked", "task_id", "work")

    def __init__(self, holder: Holder, task_id: int, fence: int) -> None:
        self.task_id = task_id
        self.fence = fence
        self.work: Work | None = None
        self.is_acked = False  # its TaskAck is on its way
        self._holder = holder
        self._task = pb.Task()
        self._renewed_at = holder.clock.now()
        self._reports = Reports()  # of work that had to start over: to be answered before it begins again
        self._resolved: list[pb.Resolved] = []  # what came before there was work to hear it

    @property
    def is_quiet(self) -> bool:
        """Whether a worker that leaves would interrupt nothing."""
        return self._reports.all_acked if self.work is None else self.work.is_quiet

    @property
    def last_renewal(self) -> float:
        """When the lease was last renewed, by the worker's clock."""
        return self._renewed_at if self.work is None else max(self._renewed_at, self.work.renewed_at)

    def renew(self, at: float) -> None:
        """Note that a message sent then has renewed the lease."""
        self._renewed_at = max(self._renewed_at, at)

    def arrived(self, task: pb.Task) -> None:
        """The task is here, or all of its state."""
        if self.work is not None or not self._reports.all_acked:
            return  # it came twice, or knows less than what is to be answered
        self._task = task
        if self.is_acked:
            self._begin()
        else:
            self._holder.acknowledge(self)

    def acknowledged(self) -> None:
        """The TaskAck is on its way: the work may begin."""
        self.is_acked = True
        self._begin()

    def receive(self, frame: pb.ServerFrame) -> None:
        """Take in what the server says of this lease. Unknown frames are ignored."""
        match frame.WhichOneof("body"):
            case "ack" if self.work is not None:
                self.work.acked(frame.number, frame.ack)
            case "ack" if frame.ack.released or frame.ack.stop == pb.STOP_CANCEL:
                self._holder.remove(self)
            case "ack":
                self._answered(frame.number)
            case "task_state" if self.work is None:
                self._task.workflow.steps.extend(frame.task_state.steps)
                self._task.workflow.more = frame.task_state.more
                self._begin()
            case "stale":
                log(INFO, "lease_lost task_id=%s reason=%s", self.task_id, reason_name(frame.stale.reason))
                self.drop()
            case "refused":
                self._refused(frame.number, frame.refused)
            case "resolved":
                self._hear(frame.resolved)
            case "cancel" if not frame.cancel.step:
                self.drop()
            case "cancel" if self.work is not None:
                self.work.cancel_step(frame.cancel.step)

    def send_again(self, greeted_at: float) -> None:
        """A Welcome lists the lease: say again what may be lost."""
        self.renew(greeted_at)
        for frame in self._reports.unacked() if self.work is None else self.work.unacked_frames():
            self._holder.send(frame)
        if self.work is None and has_state(self._task.handler.kind):
            self._need_state()
        elif self.work is None:
            self._holder.acknowledge(self)

    def start_over(self, work: StatefulWork) -> None:
        """Drop the work but keep the task, and begin with what the server has, once its frames are answered."""
        self.work = None
        self._reports = work.hand_over()
        self._need_state()

    def drop(self) -> None:
        """Stop the work, and hold the lease no longer."""
        if self.work is None:
            self._holder.remove(self)
        else:
            self.work.drop()

    def say(self, **body: Any) -> None:
        """Send a frame about this lease that needs no answer."""
        self._holder.send(pb.WorkerFrame(task_id=self.task_id, fence=self.fence, **body))

    def _begin(self) -> None:
        """Begin, once the arrival is acknowledged and all of the state is here."""
        task = self._task
        if not self._holder.holds(self) or self.work is not None or not self.is_acked or task.workflow.more:
            return
        if not self._holder.is_hosted(task.handler):
            log(ERROR, "task_of_unknown_handler kind=%s name=%s", task.handler.kind, task.handler.name)
            self._holder.remove(self)
            return
        self.work = self._holder.work_for(task)
        if self.work is None:
            self._need_state()
            return
        self.work.attach(self.task_id, self.fence, task, self._reports.number)
        self._task = pb.Task()  # its payloads are the work's by now
        earlier, self._resolved = self._resolved, []
        for resolved in earlier:
            self._hear(resolved)

    def _hear(self, resolved: pb.Resolved) -> None:
        if self.work is None:
            self._resolved.append(resolved)
        else:
            self.work.resolved(resolved)

    def _refused(self, number: int, refused: ItemError) -> None:
        if self.work is None:
            self._answered(number)
        else:
            self.work.refused(number, reason_name(refused.reason), refused.message)

    def _answered(self, number: int) -> None:
        """A frame of work that had to start over is answered, however: it begins with what the server has."""
        report = self._reports.answered(number)
        if report is not None:
            self.renew(report.sent_at)
            self._need_state()
            self._holder.rested()

    def _need_state(self) -> None:
        """Ask for all of the state. It has in it what is answered: else a body would be executed again."""
        if self._reports.all_acked:
            self.say(need_state=pb.NeedState())
