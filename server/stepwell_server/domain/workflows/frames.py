"""Frames about a run: what its worker reports of steps, waits and the end."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_server.domain.spine.frames import Body, News
from stepwell_server.domain.values.errors import DurationOutOfRange
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import HOUR, SECOND, Micros
from stepwell_server.domain.workflows.instances import Step, StepType, check_event_type

DEFAULT_EVENT_TIMEOUT = 24 * HOUR
SHORTEST_EVENT_TIMEOUT = SECOND


@dataclass(frozen=True, slots=True)
class BeginSteps(Body):
    """Bodies begin, and there is nothing else to say."""


@dataclass(frozen=True, slots=True)
class StepDone(Body):
    """A body returned."""

    name: str
    attempt: int
    policy: StepPolicy
    result: Payload | None

    @property
    def step_name(self) -> str:
        """The step that it is about."""
        return self.name

    @property
    def reported_attempt(self) -> int:
        """The execution whose end it reports."""
        return self.attempt

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 0 if self.result is None else self.result.size


@dataclass(frozen=True, slots=True)
class StepFailed(Body):
    """A body failed."""

    name: str
    attempt: int
    policy: StepPolicy
    failure: Failure

    @property
    def step_name(self) -> str:
        """The step that it is about."""
        return self.name

    @property
    def reported_attempt(self) -> int:
        """The execution whose end it reports."""
        return self.attempt

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return self.failure.size


@dataclass(frozen=True, slots=True)
class Wait(Body):
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

    @property
    def step_name(self) -> str:
        """The step that it is about."""
        return self.name


@dataclass(frozen=True, slots=True)
class Suspend(Body):
    """Nothing of the run is executing."""

    cached: bool = False
    known_revision: int = 0
    """Newest revision that the worker has heard of. 0: not said."""
    yields: bool = False
    """It could go on, but has used the steps that it was given."""

    def has_missed(self, resolved_revision: int) -> bool:
        """Whether its sender has not heard of what changed by itself at this revision."""
        return 0 < self.known_revision < resolved_revision


@dataclass(frozen=True, slots=True)
class Finish(Body):
    """The workflow function has ended: with an output, or with a failure."""

    output: Payload | None = None
    failure: Failure | None = None

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return sum(part.size for part in (self.output, self.failure) if part is not None)


@dataclass(frozen=True, slots=True)
class RunNews(News):
    """News of a run for its worker besides: steps that changed by themselves."""

    resolved: tuple[Step, ...] = ()
    timed_out: tuple[str, ...] = ()
    """Names of steps whose open execution took too long: it is over, whatever it still returns."""

    @property
    def is_worth_telling(self) -> bool:
        """Whether it says anything to the worker."""
        return bool(self.answers or self.resolved or self.timed_out) or self.stale is not None

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return 100 * (len(self.answers) + len(self.timed_out)) + sum(step.size for step in self.resolved)
