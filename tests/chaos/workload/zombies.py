"""Workers that report what is no longer theirs. The SDK takes care not to; these do not, so that servers must refuse.

A worker of the SDK that stood still drops its leases before it says a word. One of another make may not know better.
"""

from __future__ import annotations

from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.dialogue import Dialogue
from tests.chaos.facts.records import Recorder
from tests.chaos.facts.run import Count

_late: set[tuple[int, int]] = set()
"""Task and fence of leases that this process has lost, and reported on all the same."""


def count_stale(recorder: Recorder) -> None:
    """Write down each lease that this process is told to have lost while it worked on it, or after it reported on it.

    A heartbeat that crosses the end of a run is told so, too, which means nothing.
    """
    receive = Dialogue.receive

    def counting(self: Dialogue, frame: pb.ServerFrame) -> None:
        held = self.held.leases.of(frame.task_id)
        lease, is_held = (frame.task_id, frame.fence), held is not None and held.fence == frame.fence
        if frame.HasField("stale") and (is_held or lease in _late):
            _late.discard(lease)
            recorder.record(Count("stale_reports", 1))
        receive(self, frame)

    Dialogue.receive = counting  # type: ignore[method-assign]


def know_no_better() -> None:
    """Keep leases however old they are, and report what came of them even if a Welcome did not list them."""
    welcomed = Dialogue.welcomed

    def reporting(self: Dialogue, welcome: pb.Welcome) -> bool:
        kept = {(held.task_id, held.fence) for held in welcome.held}
        lost = [lease for lease in self.held.leases if (lease.task_id, lease.fence) not in kept]
        reports = [frame for lease in lost if lease.work is not None for frame in lease.work.unacked_frames()]
        goes_on = welcomed(self, welcome)
        for frame in reports:
            _late.add((frame.task_id, frame.fence))
            self.held.send(frame)
        return goes_on

    Dialogue.welcomed = reporting  # type: ignore[method-assign]
    Dialogue.expire = _keep  # type: ignore[method-assign]


def _keep(self: Dialogue) -> None:
    """Nothing is too old."""
