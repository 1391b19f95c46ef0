"""Changes of a run without a report of its worker: time passes, events come, a worker claims it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepwell_server.domain.spine.executions import dump_open
from stepwell_server.domain.spine.frames import FrameAnswer
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason
from stepwell_server.domain.values.errors import PendingEventsLimit
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.traces import Trace
from stepwell_server.domain.workflows.frames import RunNews
from stepwell_server.domain.workflows.instances import PRIORITY, Event, Step, StepStatus, StepType
from stepwell_server.domain.workflows.run_state import RunState

_TIMED_OUT = Failure("StepTimeoutError", "STEP_TIMEOUT")
_EXHAUSTED = Failure("StepMaxAttemptsExceeded", "STEP_MAX_ATTEMPTS_EXCEEDED", non_retryable=True)
_NO_EVENT = Failure("WaitForEventTimeoutError", "WAIT_FOR_EVENT_TIMEOUT")


@dataclass(slots=True)
class ChangingRun(RunState):
    """A run, and what changes it besides its worker."""

    # ---- by itself

    def resolve(self) -> list[Step]:
        """End every wait that is over: sleeps and retries whose time has come, and events that came or did not."""
        resolved = [step for wait in self.waits() if (step := self._resolved(wait)) is not None]
        self.task = self.task._replace(wake_again=False)
        if resolved:
            self._changes_by_itself()
        for step in resolved:
            self._put(step)
        told, self.asked_again = self.asked_again, []
        return told + [self.steps[step.name] for step in resolved]

    def _resolved(self, wait: Step) -> Step | None:
        over = wait.due_at <= self.now
        match wait.type:
            case StepType.DO:
                return wait._replace(status=StepStatus.PENDING, next_retry_at=None) if over else None
            case StepType.SLEEP:
                return wait._replace(status=StepStatus.COMPLETED) if over else None
            case StepType.WAIT_FOR_EVENT:
                event = self._take_event(wait)
                if event is not None:
                    return wait.ended_by(event)
                return wait._replace(status=StepStatus.ERRORED, failure=_NO_EVENT) if over else None

    def _take_event(self, wait: Step) -> Event | None:
        """The oldest event that is in time for the wait. It was stored before the deadline, whenever we look."""
        for index, event in enumerate(self.events):
            if event.type == wait.event_type and event.created_at <= wait.due_at:
                del self.events[index]
                self.delivered.append(replace(event, delivered_at=self.now, consumed_by_step=wait.name))
                self.task = self.task._replace(pending_events=self.task.pending_events - 1)
                return event
        return None

    def expire(self) -> list[str]:
        """Fail executions that are open for too long. Returns the names of their steps."""
        late = [one for one in self.open_steps if one.ends_at <= self.now]
        if late:
            names = {one.name for one in late}
            rest = [one for one in self.open_steps if one.name not in names]
            self.task = self.task._replace(open_steps=dump_open(rest))
            self._changes_by_itself()
            for one in late:
                step = self._executing(one)
                if not step.status.final and one.attempt > step.attempts:
                    self._fail(step, one.attempt, _TIMED_OUT)
        return [one.name for one in late]

    def _changes_by_itself(self) -> None:
        revision = self.task.revision + 1
        self.task = self.task._replace(revision=revision, resolved_revision=revision)

    def _fail(self, step: Step, attempt: int, failure: Failure) -> Micros | None:
        """The execution failed: wait for the next one, if there may be one. Returns when that is."""
        assert step.policy is not None
        retry = step.policy.retry
        if failure.non_retryable or not retry.allows_after(attempt):
            self._put(step, status=StepStatus.ERRORED, attempts=attempt, failure=failure, next_retry_at=None)
            return None
        retry_at = self.now + retry.delay_after(attempt)
        self._put(step, status=StepStatus.WAITING, attempts=attempt, failure=failure, next_retry_at=retry_at)
        return retry_at

    def charge(self) -> None:
        """Count the executions that were open when the holder was lost."""
        for one in self.open_steps:
            step = self._executing(one)
            if step.status.final or one.attempt <= step.attempts:
                continue
            if one.policy.retry.allows_after(one.attempt):
                self._put(step, status=StepStatus.PENDING, attempts=one.attempt, next_retry_at=None)
            else:
                self._put(step, status=StepStatus.ERRORED, attempts=one.attempt, failure=_EXHAUSTED, next_retry_at=None)
        self.task = self.task._replace(open_steps="")

    def news(self, answers: tuple[FrameAnswer, ...], *, again: bool) -> RunNews:
        """Server-side changes for the worker: ended waits, timed-out steps. `again`: also those it may have missed."""
        expired = self.expire()
        resolved = self.resolve() if self.overdue() or self.task.wake_again else []
        told = self.told_again() if again else [*(self.steps[name] for name in expired), *resolved]
        return RunNews(answers, self.task.revision, self.next_timer(), None, tuple(told), tuple(expired))

    def end_overtime(self) -> bool:
        """Fail executions that take too long. True: its holder, which has no stream, has something to ask for."""
        if self.expire():
            self.task = self.task._replace(wake_again=True)
        return self.task.wake_again or self.overdue()

    # ---- by others

    def claim(self, owner: Owner, fence: int) -> list[Step]:
        """Lease the run to a worker, and decide what is over: once, under its lock. Returns the steps that changed."""
        held_by_cache = self.task.sticky_session == owner.session_id
        cached = self.task.cached_revision if held_by_cache else 0
        if self.task.open_steps:
            self.charge()
            cached = 0
        claimed = self.task.claimed(owner, fence, self.lease_now, self.rules.times)
        self.task = claimed._replace(
            revision=claimed.revision + 1,
            sticky_session=None,
            cached_revision=cached,
            claimed_at=self.now,
        )
        return self.resolve()

    def receive(self, event_type: str, payload: Payload | None, trace: Trace | None = None) -> Event:
        """Store an event, and wake the run if it waits for one of that type and is still in time.

        An event that a wait will take is stored even if the run is full: other events do not stand in its way.
        """
        limit = self.rules.limits_of(self.task.handler.namespace).max_pending_events
        waiting = sum(wait.event_type == event_type and wait.due_at >= self.now for wait in self.waits())
        if self.task.pending_events >= limit and waiting <= sum(one.type == event_type for one in self.events):
            raise PendingEventsLimit(
                f"the instance has {limit} events that no step has taken; send more when steps wait for them",
                instance_id=self.task.key,
                limit=limit,
            )
        revision = self.task.revision + 1
        self.task = self.task._replace(revision=revision, pending_events=self.task.pending_events + 1)
        event = Event(revision, event_type, payload, self.now, trace=trace or {})
        self.received.append(event)
        self.events.append(event)
        if waiting:
            self.task = self.task.woken(self.now, Reason.WAKE, PRIORITY[Reason.WAKE])
        return event
