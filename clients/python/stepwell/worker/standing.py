"""Where a run stands with the server: what its lease allows, and what it has heard."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.host import Phase


@dataclass(slots=True)
class Standing:
    """The standing of a run, for its parts: the server's terms, and the run's end."""

    phase: Phase = Phase.HELD
    revision: int = 0
    heard_revision: int = 0  # up to which the run knows what the server resolved; an Ack says nothing of that
    interruptions: int = 0
    steps_left: float = math.inf  # that may begin under this lease
    is_stopped: bool = False
    expects_news: bool = False
    was_told: bool = False  # of something new, since the last Suspend
    finish: pb.Finish | None = None

    def leased(self, task: pb.WorkflowInput) -> None:
        """A lease begins."""
        self.phase, self.is_stopped, self.expects_news = Phase.HELD, False, False
        self.revision = self.heard_revision = task.revision
        self.interruptions = task.interruptions
        self.steps_left = task.max_steps or math.inf

    @property
    def is_dropped(self) -> bool:
        """Whether the run was taken from its function."""
        return self.phase is Phase.DROPPED

    @property
    def is_over(self) -> bool:
        """Whether nothing that the function asks for is done any more."""
        return self.is_dropped or self.finish is not None

    @property
    def has_failed(self) -> bool:
        """Whether the run ends with a failure."""
        return self.finish is not None and self.finish.HasField("failure")
