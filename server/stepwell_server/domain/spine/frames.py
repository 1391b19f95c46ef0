"""Frames: what a worker reports about a task that it holds, and what it is told in return."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.spine.tasks import Stop, Verdict
from stepwell_server.domain.values.errors import InvalidField, InvalidStepName, StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import Micros

STEP_NAME_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Opening:
    """A step body that begins."""

    name: str
    attempt: int
    policy: StepPolicy
    begun: bool = False
    """It is executing already: it began before any frame could say so."""


class Body:
    """The content of a frame. Each primitive has bodies of its own."""

    __slots__ = ()

    @property
    def step_name(self) -> str | None:
        """The step that it is about, if it is about one."""
        return None

    @property
    def reported_attempt(self) -> int | None:
        """The execution whose end it reports, if it reports one."""
        return None

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 0

    def has_missed(self, resolved_revision: int) -> bool:
        """Whether its sender has not heard of what changed by itself at this revision."""
        return False


@dataclass(frozen=True, slots=True)
class Outcome(Body):
    """The handler of a job has ended: it returned, or it failed."""

    failure: Failure | None = None
    retry_after: Micros = 0
    """The handler asked not to be called again before this long."""

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 0 if self.failure is None else self.failure.size


@dataclass(frozen=True, slots=True)
class Rejected(Body):
    """A frame that could not be read: its number is used up, and its sender learns why."""

    refusal: StepwellError


@dataclass(frozen=True, slots=True)
class Frame:
    """A numbered frame about one task."""

    number: int
    body: Body
    opens: tuple[Opening, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 200 + self.body.size + 400 * len(self.opens)

    def check(self) -> None:
        """Refuse names and numbers that cannot be."""
        for name in (self.body.step_name, *(opening.name for opening in self.opens)):
            if name is not None and not 0 < len(name) <= STEP_NAME_LENGTH:
                raise InvalidStepName(f"a step is named by 1 to {STEP_NAME_LENGTH} characters", field="name")
        reported = self.body.reported_attempt
        attempts = [1 if reported is None else reported, *(opening.attempt for opening in self.opens)]
        if min(attempts) < 1:
            raise InvalidField("attempts count from 1", field="attempt")


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """The answer to one frame of a worker."""

    number: int
    verdict: Verdict
    stop: Stop = Stop.NONE
    released: bool = False
    wake_at: Micros | None = None
    revision: int = 0
    refusal: StepwellError | None = None


@dataclass(frozen=True, slots=True)
class News:
    """News of a held task for its worker: answers to its frames, and changes by the server."""

    answers: tuple[FrameAnswer, ...] = ()
    revision: int = 0
    next_timer: Micros | None = None
    """When something of it happens by itself next."""
    stale: StepwellError | None = None
    """The lease is lost: why."""

    @property
    def is_worth_telling(self) -> bool:
        """Whether it says anything to the worker."""
        return bool(self.answers) or self.stale is not None

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return 100 * len(self.answers)
