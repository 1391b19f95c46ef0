"""Work under a lease, by the kind of its handler: a new primitive is one more line."""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.kinds import Kind
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.host import Work
from stepwell.worker.job import Job
from stepwell.worker.run import Run

WORKS: Mapping[Kind, type[Work]] = {
    pb.HANDLER_KIND_WORKFLOW: Run,
    pb.HANDLER_KIND_HOOK: Job,
}


def has_state(kind: Kind) -> bool:
    """Whether the server keeps state that a Task of this kind may leave out."""
    return kind not in WORKS or WORKS[kind].has_state
