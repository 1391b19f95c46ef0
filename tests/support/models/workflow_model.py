"""What a run should do, said once more and as plainly as possible: no database, no fences, no groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stepwell_server.domain.spine.frames import Frame
from stepwell_server.domain.spine.tasks import Reason
from stepwell_server.domain.values.retry import Backoff, RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import MINUTE, SECOND, Micros
from stepwell_server.domain.workflows.frames import Finish, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.workflows.instances import InstanceStatus, StepStatus, StepType

MOST = 2
DELAY = 10 * SECOND
TIMEOUT = MINUTE
POLICY = StepPolicy(RetryPolicy(MOST, DELAY, Backoff.CONSTANT), TIMEOUT)
"""Of every body: two executions, ten seconds apart, of a minute each."""


@dataclass
class Step:
    """A step of a run."""

    type: StepType
    born: int
    status: StepStatus = StepStatus.PENDING
    attempts: int = 0
    due: Micros | None = None
    event_type: str = ""
    event: str | None = None
    """Payload of the event that it took."""
    changed: int = 0


@dataclass
class Sent:
    """An event."""

    type: str
    payload: str
    at: Micros
    taken_by: str = ""


@dataclass(frozen=True)
class Answered:
    """What a worker should be told: whether each frame is new, refused, gave the task up; and whether it lost it."""

    frames: tuple[tuple[str, bool, bool], ...] = ()
    stale: bool = False


@dataclass
class Run:
    """The current run of an instance."""

    name: str
    id: int
    run_at: Micros
    run_number: int = 0
    ended: InstanceStatus | None = None
    ended_by: int | None = None
    """Fence of the worker that ended it."""
    steps: dict[str, Step] = field(default_factory=dict)
    events: list[Sent] = field(default_factory=list)
    reason: Reason = Reason.RUN
    fence: int = 0
    frame: int = 0
    held: bool = False
    acked: bool = False
    parked: bool = False
    reports_follow: bool = False
    stop: bool = False
    wake_again: bool = False
    interruptions: int = 0
    open: list[tuple[str, int, Micros]] = field(default_factory=list)
    contradicted: bool = False
    """The frame that was just taken reports an execution that does not count."""
    moment: int = 0
    """Grows with every change, to tell what was before what."""

    # ---- looking

    @property
    def status(self) -> InstanceStatus:
        """Where the instance stands."""
        if self.ended is not None:
            return self.ended
        if self.held:
            return InstanceStatus.WAITING_FOR_PAUSE if self.stop else InstanceStatus.RUNNING
        if self.parked:
            return InstanceStatus.PAUSED
        return InstanceStatus.WAITING if self.reason in (Reason.WAKE, Reason.RETRY) else InstanceStatus.QUEUED

    def claimable(self, now: Micros) -> bool:
        """Whether a worker could have it now."""
        return self.ended is None and not self.held and not self.parked and self.run_at <= now

    def waits(self) -> list[Step]:
        """Steps that wait, the oldest first."""
        return [step for step in self.steps.values() if step.status is StepStatus.WAITING]

    def event_for(self, step: Step) -> Sent | None:
        """The event that a wait can have."""
        if step.type is not StepType.WAIT_FOR_EVENT or step.due is None:
            return None
        mine = (one for one in self.events if one.type == step.event_type and not one.taken_by)
        return next((one for one in mine if one.at <= step.due), None)

    def overdue(self, now: Micros) -> bool:
        """Whether a wait is over."""
        return any((step.due is not None and step.due <= now) or self.event_for(step) for step in self.waits())

    # ---- by workers

    def claim(self, fence: int, now: Micros) -> None:
        """A worker takes it."""
        for name, attempt, _ in self.open:
            step = self._step(name)
            if not step.status.final and attempt > step.attempts:
                step.status = StepStatus.PENDING if attempt < MOST else StepStatus.ERRORED
                step.attempts, step.due = attempt, None
        self.open = []
        self.held, self.fence, self.frame, self.acked = True, fence, 0, False
        self.resolve(now)

    def report(self, fence: int, frames: Sequence[Frame], now: Micros) -> Answered:
        """A worker reports frames, or looks whether there is news."""
        if self.ended is not None or fence != self.fence:
            mine = self.ended_by == fence
            return Answered(tuple(("repeated", False, True) for _ in frames), False) if mine else Answered((), True)
        answers: list[tuple[str, bool, bool]] = []
        asked, was_held = False, self.held
        for place, frame in enumerate(frames, 1):
            self.reports_follow = any(isinstance(one.body, StepDone | StepFailed) for one in frames[place:])
            if frame.number <= self.frame:
                answers.append(("repeated", False, not self.held))
            elif self.parked and was_held:  # by a frame before this one
                self.frame = frame.number
                answers.append(("accepted", False, True))
            elif not self.held:
                return Answered(tuple(answers), True)
            else:
                asked = asked or self._is_over(frame)
                refused = not self._take(frame, now, asked=asked)
                if self.contradicted:
                    self.contradicted = False
                    return Answered(tuple(answers), True)
                answers.append(("accepted", refused, not self.held))
        if not frames and not self.held:
            return Answered((), True)
        if self.held:
            self._look(now, asked=asked)
        return Answered(tuple(answers))

    def lose(self, now: Micros) -> None:
        """Its worker is lost."""
        self.interruptions += self.acked and not self.frame and not self.open
        self.run_at, self.reason = now, Reason.TAKEOVER
        self._let_go()

    def _is_over(self, frame: Frame) -> bool:
        """Whether the frame opens a wait that has ended."""
        if not isinstance(frame.body, Wait):
            return False
        known = self.steps.get(frame.body.name)
        return known is not None and known.type is frame.body.type and known.status.final

    def _let_go(self) -> None:
        self.parked, self.held, self.stop, self.acked = self.stop, False, False, False

    def _take(self, frame: Frame, now: Micros, *, asked: bool) -> bool:
        """Apply a frame. False: it is refused."""
        self.moment += 1
        before = self.frame
        self.frame = frame.number
        opened = self._open_after(frame, now)
        self.acked = True  # also by a frame that is refused: its sender has the task
        if opened is None or not self._could(frame, asked=asked):
            return False
        were_open = {name: attempt for name, attempt, _ in self.open}
        self.open, self.interruptions = opened, 0
        assert frame.number == before + 1
        match frame.body:
            case StepDone() as report:
                self._end_attempt(report, were_open, now)
            case StepFailed() as report:
                self._end_attempt(report, were_open, now)
            case Wait() as wait if wait.name not in self.steps:
                due = now + (wait.duration or 0)
                step = Step(wait.type, self.moment, StepStatus.WAITING, 0, due, wait.event_type, changed=self.moment)
                self.steps[wait.name] = step
            case Suspend() if not self.stop and not asked and not self.overdue(now):
                self._suspend()
            case Finish() as finish if not self.stop:
                self.ended = InstanceStatus.COMPLETE if finish.failure is None else InstanceStatus.ERRORED
                self.ended_by, self.held = self.fence, False
            case _:
                pass
        if self.contradicted:
            self.lose(now)
        elif self.held and self.stop and not (self.open or self.reports_follow):
            self._let_go()
            self.wake_again = False
        return True

    def _could(self, frame: Frame, *, asked: bool) -> bool:
        """Whether the frame can be at all."""
        body = frame.body
        known = self.steps.get(getattr(body, "name", ""))
        match body:
            case StepDone() | StepFailed():
                return known is None or known.type is StepType.DO
            case Wait():
                return known is None or known.type is body.type
            case Suspend():
                return bool(self.stop or asked or self.waits())
            case _:
                return True

    def _open_after(self, frame: Frame, now: Micros) -> list[tuple[str, int, Micros]] | None:
        """What executes after the frame. None: it cannot."""
        if isinstance(frame.body, Suspend | Finish):
            return []
        reported = getattr(frame.body, "attempt", 0)
        still = [one for one in self.open if one[0] != frame.body.step_name or one[1] > reported]
        for one in frame.opens if not self.stop else ():
            known = self.steps.get(one.name)
            if known is not None and known.type is not StepType.DO:
                return None
            if one.attempt > MOST:
                return None
            if known is None or not (known.status.final or one.attempt <= known.attempts):
                still = [other for other in still if other[0] != one.name]
                still.append((one.name, one.attempt, now + TIMEOUT))
        return still

    def _end_attempt(self, report: StepDone | StepFailed, were_open: dict[str, int], now: Micros) -> None:
        known = self.steps.get(report.name)
        if known is not None:
            now_open = were_open.get(report.name, report.attempt)
            if now_open > report.attempt:
                return
            if known.status.final or report.attempt <= known.attempts or now_open < report.attempt:
                self.contradicted = True
                return
        step = self._step(report.name)
        if isinstance(report, StepDone):
            step.status, step.attempts, step.due, step.changed = StepStatus.COMPLETED, report.attempt, None, self.moment
        else:
            self._fail(step, report.attempt, now, final=report.failure.non_retryable)

    def _fail(self, step: Step, attempt: int, now: Micros, *, final: bool = False) -> None:
        ends = final or attempt >= MOST
        step.attempts, step.changed = attempt, self.moment
        step.status, step.due = (StepStatus.ERRORED, None) if ends else (StepStatus.WAITING, now + DELAY)

    def _suspend(self) -> None:
        due = min(step.due for step in self.waits() if step.due is not None)
        retries = any(step.type is StepType.DO and step.due == due for step in self.waits())
        self.run_at, self.reason = due, Reason.RETRY if retries else Reason.WAKE
        self.wake_again = False
        self._let_go()

    def _step(self, name: str) -> Step:
        if name not in self.steps:
            self.moment += 1
            self.steps[name] = Step(StepType.DO, self.moment, changed=self.moment)
        return self.steps[name]

    # ---- by itself

    def _look(self, now: Micros, *, asked: bool) -> None:
        for name, attempt, ends in [one for one in self.open if one[2] <= now]:
            self.open = [one for one in self.open if one[0] != name]
            step = self._step(name)
            if not step.status.final and attempt > step.attempts:
                self._fail(step, attempt, now)
            assert ends <= now
        if asked or self.overdue(now) or self.wake_again:
            self.resolve(now)

    def resolve(self, now: Micros) -> None:
        """End the waits that are over."""
        self.moment += 1
        self.wake_again = False
        for name, step in list(self.steps.items()):
            if step.status is not StepStatus.WAITING or step.due is None:
                continue
            event = self.event_for(step)
            over = step.due <= now
            if event is not None:
                step.status, step.event, event.taken_by = StepStatus.COMPLETED, event.payload, name
            elif over and step.type is StepType.WAIT_FOR_EVENT:
                step.status = StepStatus.ERRORED
            elif over:
                step.status = StepStatus.PENDING if step.type is StepType.DO else StepStatus.COMPLETED
            if step.status is not StepStatus.WAITING:
                step.due, step.changed = None, self.moment

    # ---- from outside

    def receive(self, event_type: str, payload: str, now: Micros) -> None:
        """An event comes."""
        self.moment += 1
        self.events.append(Sent(event_type, payload, now))
        waited = [step for step in self.waits() if step.event_type == event_type]
        if not any(step.due is not None and step.due >= now for step in waited) or self.parked:
            return
        if self.held:
            self.wake_again = True
        elif self.run_at > now:
            self.run_at, self.reason = now, Reason.WAKE

    def pause(self) -> None:
        """It is to stop."""
        self.moment += 1
        if self.held:
            self.stop = True
        else:
            self.parked = True

    def resume(self, now: Micros) -> None:
        """It may go on."""
        self.moment += 1
        self.stop = False
        if self.parked:
            self.parked, self.run_at, self.reason, self.wake_again = False, now, Reason.RESUME, False

    def restarted(self, from_step: str, now: Micros) -> Run:
        """The next run."""
        kept = {}
        if from_step:
            before = self.steps[from_step].born
            kept = {
                name: replace(step)
                for name, step in self.steps.items()
                if step.status is StepStatus.COMPLETED and step.changed < before
            }
        return Run(self.name, self.id, now, self.run_number + 1, steps=kept, moment=self.moment + 1)


@dataclass
class Model:
    """Every instance there is, and the time."""

    now: Micros = 0
    runs: dict[str, Run] = field(default_factory=dict)
    payloads: int = 0
