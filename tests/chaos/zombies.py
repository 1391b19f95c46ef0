"""Workers that report what is no longer theirs. The SDK takes care not to; these do not, so that servers must refuse.

A worker of the SDK that stood still drops its leases before it says a word. One of another make may not know better.
"""

from __future__ import annotations

from stepwell.holdings import Holdings
from stepwell.v1 import workers_pb2 as pb
from tests.chaos.records import Count, Recorder


def count_stale(recorder: Recorder) -> None:
    """Write down each time that this process is told that a report was about a lease which it had lost."""
    receive = Holdings.receive

    def counting(self: Holdings, frame: pb.ServerFrame) -> None:
        if frame.HasField("stale"):
            recorder.record(Count("stale_reports", 1))
        receive(self, frame)

    Holdings.receive = counting  # type: ignore[method-assign]


def know_no_better() -> None:
    """Keep leases however old they are, and report what came of them even if a Welcome did not list them."""
    welcomed = Holdings.welcomed

    def reporting(self: Holdings, welcome: pb.Welcome) -> None:
        kept = {(held.task_id, held.fence) for held in welcome.held}
        lost = [held for held in self._held.values() if (held.task_id, held.fence) not in kept]
        late = [frame for held in lost if held.work is not None for frame in held.work.unacked_frames()]
        welcomed(self, welcome)
        for frame in late:
            self.send(frame)

    Holdings.welcomed = reporting  # type: ignore[method-assign]
    Holdings.expire = _keep  # type: ignore[method-assign]


def _keep(self: Holdings) -> None:
    """Nothing is too old."""
