"""Frames of a run that has come to rest: those that are ready, and the frame that ends, waits or yields."""

from __future__ import annotations

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.host import Host, Phase
from stepwell.worker.open_steps import OpenSteps
from stepwell.worker.outgoing import Reports
from stepwell.worker.standing import Standing
from stepwell.worker.step_calls import StepCall


class Sender:
    """Sends the frames of one run."""

    __slots__ = ("_host", "_reports", "_standing", "_steps")

    def __init__(self, host: Host, standing: Standing, steps: OpenSteps, reports: Reports) -> None:
        self._host = host
        self._standing = standing
        self._steps = steps
        self._reports = reports

    def flush(self) -> None:
        """Send what there is to say, and the bodies that may begin when it is durable."""
        begins = self._steps.bodies.take_asked()
        if begins and not self._reports.has_news:
            self._reports.add(pb.WorkerFrame(begin_steps=pb.BeginSteps()))
        self._conclude()
        if self._reports.has_news:
            self._send(begins)

    def name_bodies(self) -> None:
        """Say which bodies execute, if no frame has said so yet."""
        if self._standing.phase is Phase.HELD and self._steps.bodies.are_unannounced:
            if not self._reports.has_news:
                self._reports.add(pb.WorkerFrame(begin_steps=pb.BeginSteps()))
            self._send([])

    def may_ask_again(self) -> bool:
        """Whether a pause holds up bodies, and nothing else is left to do until it is withdrawn."""
        is_held_up = self._standing.phase is Phase.HELD and self._standing.is_stopped and self._steps.calls.asked
        return bool(is_held_up) and self._is_answered() and not self._host.is_draining

    def _send(self, begins: list[StepCall]) -> None:
        self._standing.interruptions = 0
        self._reports.announce(self._steps.bodies.take_unannounced(), begins)
        self._reports.send(self._host.clock.now(), self._host.send)

    def _conclude(self) -> None:
        """Add the end, or the rest, of the run to what is sent if it has come to that."""
        standing, calls = self._standing, self._steps.calls
        if standing.finish is not None and (not calls.busy or standing.has_failed):
            self._reports.add(pb.WorkerFrame(finish=standing.finish))
            standing.phase = Phase.FINISHING
        elif standing.finish is None and calls and not calls.busy and not standing.expects_news:
            self._suspend(cached=True)
        elif len(calls.asked) < calls.busy:
            return  # a body executes, or the server decides about one
        elif standing.is_stopped and self._is_answered():
            # To pause, with bodies that were not let begin. Should the pause be withdrawn by now, they are due at once.
            self._suspend(cached=False, yields=True)
        elif standing.steps_left < 1 and calls.asked and not standing.expects_news:
            self._suspend(cached=False, yields=True)

    def _is_answered(self) -> bool:
        return self._reports.all_acked and not self._reports.has_news and not self._standing.expects_news

    def _suspend(self, *, cached: bool, yields: bool = False) -> None:
        suspend = pb.Suspend(cached=cached, known_revision=self._standing.heard_revision, yields=yields)
        self._reports.add(pb.WorkerFrame(suspend=suspend))
        self._standing.phase, self._standing.was_told = Phase.SUSPENDING, False
