"""The numbered frames of a run: held back until it rests, sent together, kept until they are acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.step_calls import StepCall


@dataclass(slots=True, eq=False)
class Report:
    """A frame, and what its Ack sets off."""

    frame: pb.WorkerFrame
    error: BaseException | None = None
    begins: list[StepCall] | None = None
    sent_at: float = 0.0


class Reports:
    """The frames of one run under one fence, numbered from 1 without gaps."""

    __slots__ = ("_ready", "_task_id", "_unacked", "fence", "number")

    def __init__(self) -> None:
        self.number = 0
        self._task_id = 0
        self.fence = 0
        self._ready: list[Report] = []
        self._unacked: dict[int, Report] = {}

    def restart(self, task_id: int, fence: int, number: int) -> None:
        """Count on from `number`, 0 for a new lease. Frames that were not sent yet are sent under it."""
        self._task_id, self.fence, self.number, self._unacked = task_id, fence, number, {}

    @property
    def has_news(self) -> bool:
        """Whether there is something to send."""
        return bool(self._ready)

    @property
    def all_acked(self) -> bool:
        """Whether everything that was sent is acknowledged."""
        return not self._unacked

    def is_undecided(self, name: str) -> bool:
        """Whether an execution of the step has failed and the server has not said yet what it makes of that."""
        reports = (*self._ready, *self._unacked.values())
        return any(report.error is not None and report.frame.step_failed.name == name for report in reports)

    def add(self, frame: pb.WorkerFrame, error: BaseException | None = None) -> None:
        """Say this with the next message. `error` is what a StepFailed is about."""
        self._ready.append(Report(frame, error))

    def announce(self, executing: list[StepCall], begins: list[StepCall]) -> None:
        """Name bodies that execute already in the first frame, those that begin when all is durable in the last."""
        for call in executing:
            call.announce(self._ready[0].frame, begun=True)
        for call in begins:
            call.announce(self._ready[-1].frame)
        if begins:
            self._ready[-1].begins = begins

    def send(self, now: float, send: Callable[[pb.WorkerFrame], None]) -> None:
        """Number and send what there is to say, and keep it."""
        ready, self._ready = self._ready, []
        for report in ready:
            self.number += 1
            report.sent_at = now
            frame = report.frame
            frame.task_id, frame.fence, frame.number = self._task_id, self.fence, self.number
            self._unacked[self.number] = report
            send(frame)

    def answered(self, number: int) -> Report | None:
        """The report that the server has answered; None if it was answered before."""
        return self._unacked.pop(number, None)

    def defuse(self) -> None:
        """Say nothing more, and let no answer set anything off. Sent frames are kept: numbers have no gaps."""
        self._ready = []
        for report in self._unacked.values():
            report.error = report.begins = None

    def handed_over(self) -> Reports:
        """Take all sent frames that are to be answered, without setting anything off."""
        taken = Reports()
        taken.restart(self._task_id, self.fence, self.number)
        taken._unacked = self._unacked
        taken.defuse()
        self.forget()
        return taken

    def forget(self) -> None:
        """Say nothing of what was not sent yet, and expect no answers."""
        self._ready, self._unacked = [], {}

    def unacked(self) -> Iterator[pb.WorkerFrame]:
        """The frames to send again after a reconnect, in order."""
        return (report.frame for report in self._unacked.values())
