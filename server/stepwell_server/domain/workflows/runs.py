"""A run: what its worker's frames, its timers and its events make of its steps.

`Run` is a working copy inside one transaction. It is read under the lock of the run's task, changed in memory by any
number of calls, and written once. Nothing here reads a clock or a database.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from stepwell_server.domain.namespaces import NamespaceLimits
from stepwell_server.domain.spine.executions import OpenStep, dump_open, load_open
from stepwell_server.domain.spine.frames import (
    BeginSteps,
    Finish,
    Frame,
    FrameAnswer,
    Opening,
    Outcome,
    Rejected,
    RunNews,
    StepDone,
    StepFailed,
    Suspend,
    Wait,
)
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus, Verdict
from stepwell_server.domain.values.errors import (
    InvalidField,
    MaxStepsExceeded,
    PendingEventsLimit,
    StepTypeMismatch,
    StepwellError,
)
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.domain.values.traces import Trace
from stepwell_server.domain.workflows.instances import PRIORITY, Event, Step, StepStatus, StepType

TIMEOUT_MARGIN = 30 * SECOND
"""How much longer than its timeout an execution may be open before the server ends it: workers do it themselves."""

_TIMED_OUT = Failure("StepTimeoutError", "STEP_TIMEOUT")
_EXHAUSTED = Failure("StepMaxAttemptsExceeded", "STEP_MAX_ATTEMPTS_EXCEEDED", non_retryable=True)
_NO_EVENT = Failure("WaitForEventTimeoutError", "WAIT_FOR_EVENT_TIMEOUT")


@dataclass(frozen=True, slots=True)
class RunRules:
    """What holds for every run of a server."""

    limits: Limits = field(default_factory=Limits)
    times: LeaseTimes = field(default_factory=LeaseTimes)
    timeout_margin: Micros = TIMEOUT_MARGIN
    namespaces: Mapping[str, NamespaceLimits] = field(default_factory=dict)
    """Lower limits of namespaces, as far as they are known."""
    registered: Set[Handler] = frozenset()
    """Handlers that somebody hosts or that have a target, as far as is known."""

    def steps_per_run(self, namespace: str) -> int:
        """Most steps of a run there."""
        own = self.namespaces.get(namespace)
        return self.limits.steps_per_run if own is None else own.max_steps_per_run

    def pending_events(self, namespace: str) -> int:
        """Most events of a run that nobody took."""
        own = self.namespaces.get(namespace)
        return self.limits.pending_events if own is None else own.max_pending_events


@dataclass(slots=True)
class Ending:
    """How a run ended."""

    failure: Failure | None
    output: Payload | None
    fence: int


@dataclass(slots=True)
class Run:
    """A run as one transaction sees it. `steps` holds those that were read: the ones in question, and all that wait."""

    task: Task
    now: Micros
    lease_now: Micros
    rules: RunRules
    steps: dict[str, Step] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """Undelivered ones of the types in question, the oldest first."""
    changed: dict[str, Step] = field(default_factory=dict)
    received: list[Event] = field(default_factory=list)
    delivered: list[Event] = field(default_factory=list)
    asked_again: list[Step] = field(default_factory=list)
    """Waits that are over, and that the worker opened all the same because it does not know."""
    ending: Ending | None = None
    reports_follow: bool = False
    """Frames of the same call report more executions: whoever is to pause is not parked before those are stored."""
    has_parked: bool = False
    """A frame of its worker has parked it, in this very transaction."""
    is_contradicted: bool = False
    """Its worker reported an execution that no longer counts, and its function has gone on with what came of it."""

    # ---- what the worker reports

    def apply(self, frame: Frame, session_id: str) -> FrameAnswer:
        """Take a frame over. One that is refused uses its number up, and shows that its worker lives; no more."""
        before = self.task
        try:
            wake_at = self._take(frame, session_id)
        except StepwellError as refusal:
            self.task = before._replace(frame_number=frame.number, acked=True, locked_until=self._lease_end)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, before.stop, revision=before.revision, refusal=refusal)
        released = self.ending is not None or self.task.status is not TaskStatus.PROCESSING
        return FrameAnswer(frame.number, Verdict.ACCEPTED, before.stop, released, wake_at, self.task.revision)

    def repeat(self, frame: Frame) -> FrameAnswer:
        """Answer a frame whose number is used as it would be answered now; one that cannot be read is refused again."""
        if isinstance(frame.body, Rejected):
            said, refusal = self.task, frame.body.refusal
            return FrameAnswer(frame.number, Verdict.REPEATED, said.stop, revision=said.revision, refusal=refusal)
        released = self.ending is not None or self.task.status is not TaskStatus.PROCESSING
        known = self.steps.get(frame.step_name or "")
        wake_at = None
        if known is not None and isinstance(frame.body, StepFailed | Wait):
            wake_at = known.wake_at if known.type is not StepType.DO else self._next_execution(known)
        return FrameAnswer(frame.number, Verdict.REPEATED, self.task.stop, released, wake_at, self.task.revision)

    def _next_execution(self, step: Step) -> Micros | None:
        """When a step is executed again: now, if that time has come. None: never."""
        return None if step.status.final else step.next_retry_at or self.now

    def _take(self, frame: Frame, session_id: str) -> Micros | None:
        open_steps = self._open_after(frame)
        previous, revision = self.task, self.task.revision + 1
        self.task = previous._replace(
            frame_number=frame.number,
            revision=revision,
            open_steps=dump_open(open_steps),
            interruptions=0,
            acked=True,
            locked_until=self._lease_end,
        )
        wake_at = None
        match frame.body:
            case BeginSteps():
                pass
            case StepDone() as done:
                self._done(done, previous, revision)
            case StepFailed() as failed:
                wake_at = self._failed(failed, previous, revision)
            case Wait() as wait:
                wake_at = self._wait(wait, revision)
            case Suspend() as suspend:
                self._suspend(suspend, session_id)
            case Finish() as finish:
                self._finish(finish)
            case Outcome():
                raise InvalidField("a run is reported on step by step", field="body")
            case Rejected() as rejected:
                raise rejected.refusal
        if self.is_contradicted:  # whoever takes it over replays it from what is stored
            self.task = self.task.lapsed(self.now)
        elif self.task.stop is Stop.PAUSE and not (open_steps or self.reports_follow) and self.ending is None:
            self._park()
        return wake_at

    @property
    def _lease_end(self) -> Micros:
        """The end of a lease that begins or is renewed now."""
        return self.lease_now + self.rules.times.lease

    def _open_after(self, frame: Frame) -> list[OpenStep]:
        """What is executing once the frame is durable. A run that is to pause begins nothing more."""
        if isinstance(frame.body, Suspend | Finish):
            return []
        reported = getattr(frame.body, "attempt", 0)
        still = [one for one in self.open_steps if one.name != frame.step_name or one.attempt > reported]
        begins = [one for one in frame.opens if one.begun or self.task.stop is Stop.NONE]
        opened = {one.name: one for begin in begins if (one := self._opened(begin)) is not None}
        limit = self.rules.steps_per_run(self.task.handler.namespace)
        if len(still) + len(opened) > limit:
            raise MaxStepsExceeded(f"a run has at most {limit} steps", limit=limit)
        return [one for one in still if one.name not in opened] + [*opened.values()]

    def _done(self, done: StepDone, before: Task, revision: int) -> None:
        step = self._attempted(done, before, revision)
        if step is not None:
            self._put(
                step,
                status=StepStatus.COMPLETED,
                attempts=done.attempt,
                result=done.result,
                failure=None,
                next_retry_at=None,
            )

    def _failed(self, failed: StepFailed, before: Task, revision: int) -> Micros | None:
        step = self._attempted(failed, before, revision)
        return None if step is None else self._fail(step, failed.attempt, failed.failure.shortened())

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

    def _attempted(self, report: StepDone | StepFailed, before: Task, revision: int) -> Step | None:
        """The step whose execution is reported. None: another execution is open by now, or the step is over."""
        known = self.steps.get(report.name)
        if known is None:
            _check_attempt(report.attempt, report.policy)
            self._count(StepType.DO)
            return self._new_step(report.name, StepType.DO, revision, policy=report.policy)
        if known.type is not StepType.DO:
            raise _mismatch(known, StepType.DO)
        _check_attempt(report.attempt, known.policy)
        opened = {one.name: one.attempt for one in load_open(before.open_steps)}
        open_attempt = opened.get(report.name, report.attempt)
        if open_attempt > report.attempt:
            return None  # its worker has begun another one, and knows
        if known.status.final or report.attempt <= known.attempts or open_attempt != report.attempt:
            self.is_contradicted = True
            return None
        return known

    def _wait(self, wait: Wait, revision: int) -> Micros:
        """Store the wait, unless it is stored: it keeps the time that it got first."""
        wait.check(self.rules.limits.timer)
        known = self.steps.get(wait.name)
        if known is not None and known.type is not wait.type:
            raise _mismatch(known, wait.type)
        if known is None:
            ends_at = wait.ends_at(self.now, self.rules.limits.timer)
            self._count(wait.type)
            known = self._new_step(wait.name, wait.type, revision, wake_at=ends_at, event_type=wait.event_type)
            self._put(known, status=StepStatus.WAITING)
        elif known.status.final:
            self.asked_again.append(known)
        assert known.wake_at is not None
        return known.wake_at

    def _suspend(self, suspend: Suspend, session_id: str) -> None:
        """Give the run up until its next time, unless something is over already, or it is to pause."""
        if self.task.stop is Stop.PAUSE or self.overdue() or suspend.has_missed(self.task.resolved_revision):
            return
        due = self.now if suspend.yields else self.next_due()
        if due is None:
            raise InvalidField("nothing of the run waits, so nothing would wake it", field="suspend")
        reason = Reason.RETRY if self._is_retry(due) else Reason.WAKE
        released = self.task._replace(wake_again=False).released(self.now, due, reason, PRIORITY[reason])
        self.task = released._replace(
            sticky_session=session_id if suspend.cached else None, cached_revision=released.revision
        )

    def _finish(self, finish: Finish) -> None:
        if self.task.stop is not Stop.PAUSE:
            failure = None if finish.failure is None else finish.failure.shortened()
            self.ending = Ending(failure, finish.output, self.task.fence)

    def _park(self) -> None:
        """Nothing is executing any more, and the run is to pause: it is out of reach until it is resumed."""
        self.task = self.task.released(self.now, self.now, Reason.RESUME, PRIORITY[Reason.RESUME])
        self.has_parked = True

    # ---- what happens by itself

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

    def _executing(self, one: OpenStep) -> Step:
        known = self.steps.get(one.name)
        if known is not None:
            return known
        self.task = self.task._replace(revision=self.task.revision + 1, step_count=self.task.step_count + 1)
        return self._new_step(one.name, StepType.DO, self.task.revision, policy=one.policy)

    def news(self, answers: tuple[FrameAnswer, ...], *, again: bool) -> RunNews:
        """What its worker learns besides: what is over by itself; all of that again, if it may have missed some."""
        expired = self.expire()
        resolved = self.resolve() if self.overdue() or self.task.wake_again else []
        told = self.told_again() if again else [*(self.steps[name] for name in expired), *resolved]
        return RunNews(answers, tuple(told), tuple(expired), self.task.revision, self.next_timer())

    # ---- what others do

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

        What a wait will take is stored although the run has as many as it may have: others do not stand in its way.
        """
        limit = self.rules.pending_events(self.task.handler.namespace)
        waiting = sum(wait.event_type == event_type and wait.due_at >= self.now for wait in self.waits())
        if self.task.pending_events >= limit and waiting <= sum(one.type == event_type for one in self.events):
            raise PendingEventsLimit(
                f"the instance has {limit} events that nobody took", instance_id=self.task.key, limit=limit
            )
        revision = self.task.revision + 1
        self.task = self.task._replace(revision=revision, pending_events=self.task.pending_events + 1)
        event = Event(revision, event_type, payload, self.now, trace=trace or {})
        self.received.append(event)
        self.events.append(event)
        if waiting:
            self.task = self.task.woken(self.now, Reason.WAKE, PRIORITY[Reason.WAKE])
        return event

    # ---- reading

    @property
    def open_steps(self) -> tuple[OpenStep, ...]:
        """Executions under way."""
        return load_open(self.task.open_steps)

    def told_again(self) -> list[Step]:
        """What the worker may not have heard of: whatever changed by itself. Its own results it knows."""
        own = (StepType.DO, StepStatus.COMPLETED)
        return [step for step in self.steps.values() if (step.type, step.status) != own and not _is_open_wait(step)]

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

    # ---- writing

    def _opened(self, one: Opening) -> OpenStep | None:
        """An execution that begins. None: the step is over, and nothing it does will count."""
        known = self.steps.get(one.name)
        if known is not None and known.type is not StepType.DO:
            raise _mismatch(known, StepType.DO)
        policy = one.policy if known is None or known.policy is None else known.policy
        _check_attempt(one.attempt, policy)
        if known is not None and (known.status.final or one.attempt <= known.attempts):
            return None
        return OpenStep(one.name, one.attempt, self.now + policy.timeout + self.rules.timeout_margin, policy)

    def _count(self, step_type: StepType) -> None:
        if not step_type.counts:
            return
        limit = self.rules.steps_per_run(self.task.handler.namespace)
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


def _is_open_wait(step: Step) -> bool:
    return step.type is not StepType.DO and step.status is StepStatus.WAITING


def _check_attempt(attempt: int, policy: StepPolicy | None) -> None:
    if policy is not None and policy.retry.max_attempts is not None and attempt > policy.retry.max_attempts:
        most = policy.retry.max_attempts
        raise InvalidField(f"the step has at most {most} executions", field="attempt", limit=most)


def _mismatch(known: Step, wanted: StepType) -> StepTypeMismatch:
    return StepTypeMismatch(
        f"the step is a {known.type} and cannot be a {wanted}", step=known.name, type=known.type, wanted=wanted
    )
