"""A run as one transaction sees it: its task, its steps and its events, read once and written once."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell_server.domain.spine.executions import OpenStep, load_open
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import MaxStepsExceeded
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import Event, Step, StepStatus, StepType


@dataclass(slots=True)
class Ending:
    """How a run ended."""

    failure: Failure | None
    output: Payload | None
    fence: int


@dataclass(slots=True)
class RunState:
    """A run as one transaction sees it. `steps` holds those that were read: the ones in question, and all that wait."""

    task: Task
    now: Micros
    lease_now: Micros
    rules: Rules
    steps: dict[str, Step] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """Undelivered ones of the types in question, the oldest first."""
    changed: dict[str, Step] = field(default_factory=dict)
    received: list[Event] = field(default_factory=list)
    delivered: list[Event] = field(default_factory=list)
    asked_again: list[Step] = field(default_factory=list)
    """Waits that are over, and that the worker opened all the same because it does not know."""
    ending: Ending | None = None

    # ---- reading

    @property
    def open_steps(self) -> tuple[OpenStep, ...]:
        """Executions under way."""
        return load_open(self.task.open_steps)

    def waits(self) -> list[Step]:
        """Steps that wait, the oldest first."""
        waiting = [step for step in self.steps.values() if step.status is StepStatus.WAITING]
        return sorted(waiting, key=lambda step: step.position)

    def next_due(self) -> Micros | None:
        """When the first wait is over."""
        return min((wait.due_at for wait in self.waits()), default=None)

    def next_timer(self) -> Micros | None:
        """When something of the run happens by itself: a wait is over, or an execution takes too long."""
        times = [wait.due_at for wait in self.waits()] + [one.ends_at for one in self.open_steps]
        return min(times, default=None)

    def overdue(self) -> bool:
        """Whether a wait is over already."""
        return bool(self.asked_again) or any(self._could_resolve(wait) for wait in self.waits())

    def _could_resolve(self, wait: Step) -> bool:
        if wait.due_at <= self.now:
            return True
        return wait.type is StepType.WAIT_FOR_EVENT and any(one.type == wait.event_type for one in self.events)

    def _is_retry(self, due: Micros) -> bool:
        return any(wait.type is StepType.DO and wait.due_at == due for wait in self.waits())

    def told_again(self) -> list[Step]:
        """Steps that the worker may not know: those that changed by themselves. It knows its own results."""
        own = (StepType.DO, StepStatus.COMPLETED)
        return [step for step in self.steps.values() if (step.type, step.status) != own and not _is_open_wait(step)]

    # ---- writing

    def _count(self, step_type: StepType) -> None:
        if not step_type.counts:
            return
        limit = self.rules.limits_of(self.task.handler.namespace).max_steps_per_run
        if self.task.step_count >= limit:
            raise MaxStepsExceeded(f"a run has at most {limit} steps", limit=limit)
        self.task = self.task._replace(step_count=self.task.step_count + 1)

    def _new_step(
        self,
        name: str,
        step_type: StepType,
        revision: int,
        *,
        policy: StepPolicy | None = None,
        wake_at: Micros | None = None,
        event_type: str = "",
    ) -> Step:
        return Step(
            name=name,
            type=step_type,
            status=StepStatus.PENDING,
            position=revision,
            revision=revision,
            created_at=self.now,
            updated_at=self.now,
            policy=policy,
            wake_at=wake_at,
            event_type=event_type,
        )

    def _put(self, step: Step, **changes: object) -> None:
        """Change a step as of the run's present revision."""
        stored = step._replace(revision=self.task.revision, updated_at=self.now, **changes)  # type: ignore[arg-type]
        self.steps[step.name] = self.changed[step.name] = stored

    def _executing(self, one: OpenStep) -> Step:
        known = self.steps.get(one.name)
        if known is not None:
            return known
        self.task = self.task._replace(revision=self.task.revision + 1, step_count=self.task.step_count + 1)
        return self._new_step(one.name, StepType.DO, self.task.revision, policy=one.policy)


def _is_open_wait(step: Step) -> bool:
    return step.type is not StepType.DO and step.status is StepStatus.WAITING
