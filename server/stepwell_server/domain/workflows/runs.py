"""A run: what its worker's frames, its timers and its events make of its steps.

`Run` is a working copy inside one transaction. It is read under the lock of the run's task, changed in memory by any
number of calls, and written once. Nothing here reads a clock or a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell_server.domain.spine.executions import OpenStep, dump_open, load_open
from stepwell_server.domain.spine.frames import Frame, FrameAnswer, Opening, Rejected
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus, Verdict
from stepwell_server.domain.values.errors import InvalidField, MaxStepsExceeded, StepTypeMismatch, StepwellError
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.frames import BeginSteps, Finish, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.workflows.instances import PRIORITY, Step, StepStatus, StepType
from stepwell_server.domain.workflows.run_changes import ChangingRun
from stepwell_server.domain.workflows.run_state import Ending


@dataclass(slots=True)
class Run(ChangingRun):
    """A run, and what its worker reports."""

    last_report: int = 0
    """Number of the last frame of the call that reports an execution: a pause waits until that is stored."""
    has_parked: bool = False
    """A frame of its worker has parked it, in this very transaction."""
    is_contradicted: bool = False
    """Its worker reported an execution that no longer counts, and its function has gone on with what came of it."""

    def begin_batch(self, frames: Sequence[Frame]) -> None:
        """Learn which frames of one call report executions."""
        reports = [frame.number for frame in frames if frame.body.reported_attempt is not None]
        self.last_report = max(reports, default=0)

    def apply(self, frame: Frame, session_id: str) -> FrameAnswer:
        """Take a frame over. A refused frame uses its number up, and shows that its worker lives; no more."""
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
        known = self.steps.get(frame.body.step_name or "")
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
            case Rejected() as rejected:
                raise rejected.refusal
            case _:
                raise InvalidField("this frame is not for runs; report each step, then send Finish", field="body")
        if self.is_contradicted:  # the next holder replays it from the stored steps
            self.task = self.task.lapsed(self.now)
        elif (
            self.task.stop is Stop.PAUSE and not (open_steps or frame.number < self.last_report) and self.ending is None
        ):
            self._park()
        return wake_at

    @property
    def _lease_end(self) -> Micros:
        """The end of a lease that begins or is renewed now."""
        return self.lease_now + self.rules.times.lease

    def _open_after(self, frame: Frame) -> list[OpenStep]:
        """Bodies that execute once the frame is durable. A run that is to pause begins nothing more."""
        if isinstance(frame.body, Suspend | Finish):
            return []
        reported = frame.body.reported_attempt or 0
        still = [one for one in self.open_steps if one.name != frame.body.step_name or one.attempt > reported]
        begins = [one for one in frame.opens if one.begun or self.task.stop is Stop.NONE]
        opened = {one.name: one for begin in begins if (one := self._opened(begin)) is not None}
        limit = self.rules.limits_of(self.task.handler.namespace).max_steps_per_run
        if len(still) + len(opened) > limit:
            raise MaxStepsExceeded(f"a run has at most {limit} steps", limit=limit)
        return [one for one in still if one.name not in opened] + [*opened.values()]

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
            raise InvalidField("the run has no wait that could wake it; send Wait first", field="suspend")
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


def _check_attempt(attempt: int, policy: StepPolicy | None) -> None:
    if policy is not None and policy.retry.max_attempts is not None and attempt > policy.retry.max_attempts:
        most = policy.retry.max_attempts
        raise InvalidField(f"the step has at most {most} executions", field="attempt", limit=most)


def _mismatch(known: Step, wanted: StepType) -> StepTypeMismatch:
    return StepTypeMismatch(
        f"the step is a {known.type} and cannot be a {wanted}", step=known.name, type=known.type, wanted=wanted
    )
