"""Frames: what a worker reports about a run that it holds, and what it is told in return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stepwell_server.domain.spine.tasks import Stop, Verdict
from stepwell_server.domain.values.errors import DurationOutOfRange, InvalidField, InvalidStepName, StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import HOUR, SECOND, Micros
from stepwell_server.domain.workflows.instances import Step, StepType, check_event_type

STEP_NAME_LENGTH = 256
DEFAULT_EVENT_TIMEOUT = 24 * HOUR
SHORTEST_EVENT_TIMEOUT = SECOND


@dataclass(frozen=True, slots=True)
class Opening:
    """A step body that begins."""

    name: str
    attempt: int
    policy: StepPolicy
    begun: bool = False
    """It is executing already: it began before any frame could say so."""


@dataclass(frozen=True, slots=True)
class BeginSteps:
    """Bodies begin, and there is nothing else to say."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """A body returned."""

    name: str
    attempt: int
    policy: StepPolicy
    result: Payload | None


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A body failed."""

    name: str
    attempt: int
    policy: StepPolicy
    failure: Failure


@dataclass(frozen=True, slots=True)
class Wait:
    """A branch waits from now on: for a time, or for an event up to a time."""

    name: str
    type: StepType
    duration: Micros | None = None
    """From now on; of an event wait its timeout."""
    until: Micros | None = None
    event_type: str = ""

    def check(self, longest: Micros) -> None:
        """Refuse a time that is out of range or an event type that cannot be."""
        if self.type is StepType.WAIT_FOR_EVENT:
            check_event_type(self.event_type)
            if self.duration is None or not SHORTEST_EVENT_TIMEOUT <= self.duration <= longest:
                raise DurationOutOfRange("an event is waited for from 1 second to the longest timer", field="timeout")
        elif self.duration is not None and self.duration > longest:
            raise DurationOutOfRange("the sleep is longer than timers can be", field="sleep")

    def ends_at(self, now: Micros, longest: Micros) -> Micros:
        """When the wait is over, if it opens now."""
        if self.until is None:
            return now + (self.duration or 0)
        if self.until > now + longest:
            raise DurationOutOfRange("the sleep is longer than timers can be", field="sleep_until")
        return self.until


@dataclass(frozen=True, slots=True)
class Suspend:
    """Nothing of the run is executing."""

    cached: bool = False
    known_revision: int = 0
    """Newest revision that the worker has heard of. 0: not said."""
    yields: bool = False
    """It could go on, but has used the steps that it was given."""

    def has_missed(self, resolved_revision: int) -> bool:
        """Whether something was resolved that the worker has not heard of."""
        return 0 < self.known_revision < resolved_revision


@dataclass(frozen=True, slots=True)
class Finish:
    """The workflow function has ended: with an output, or with a failure."""

    output: Payload | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The handler of a job has ended: it returned, or it failed."""

    failure: Failure | None = None
    retry_after: Micros = 0
    """Whoever was called asked not to be called again before this long."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A frame that could not be read: its number is used up, and its sender learns why."""

    refusal: StepwellError


Body: TypeAlias = BeginSteps | StepDone | StepFailed | Wait | Suspend | Finish | Outcome | Rejected


@dataclass(frozen=True, slots=True)
class Frame:
    """A numbered frame about one run."""

    number: int
    body: Body
    opens: tuple[Opening, ...] = ()

    @property
    def step_name(self) -> str | None:
        """The step that it is about, if it is about one."""
        return getattr(self.body, "name", None)

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        payload = getattr(self.body, "result", None) or getattr(self.body, "output", None)
        failure = getattr(self.body, "failure", None)
        said = 0 if failure is None else failure.size
        return 200 + said + 400 * len(self.opens) + (0 if payload is None else payload.size)

    def check(self) -> None:
        """Refuse names and numbers that cannot be."""
        for name in (self.step_name, *(one.name for one in self.opens)):
            if name is not None and not 0 < len(name) <= STEP_NAME_LENGTH:
                raise InvalidStepName(f"a step is named by 1 to {STEP_NAME_LENGTH} characters", field="name")
        attempts = [getattr(self.body, "attempt", 1), *(one.attempt for one in self.opens)]
        if min(attempts) < 1:
            raise InvalidField("attempts count from 1", field="attempt")


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """What a worker learns from one of its frames."""

    number: int
    verdict: Verdict
    stop: Stop = Stop.NONE
    released: bool = False
    wake_at: Micros | None = None
    revision: int = 0
    refusal: StepwellError | None = None


@dataclass(frozen=True, slots=True)
class RunNews:
    """What a worker learns of its run: answers to its frames, and steps that changed by themselves."""

    answers: tuple[FrameAnswer, ...] = ()
    resolved: tuple[Step, ...] = ()
    timed_out: tuple[str, ...] = field(default=())
    """Names of steps whose open execution took too long: it is over, whatever it still returns."""
    revision: int = 0
    next_timer: Micros | None = None
    """When something of it happens by itself next."""
    stale: StepwellError | None = None
    """The lease is lost: why."""

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return 100 * (len(self.answers) + len(self.timed_out)) + sum(step.size for step in self.resolved)
