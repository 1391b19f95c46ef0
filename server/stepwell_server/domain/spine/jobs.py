"""Jobs: tasks whose handler is called once per execution and ends with one outcome. A hook is one.

`Job` is to such a task what `Run` is to a workflow's: a working copy inside one transaction, read under the task's lock
and written once. The execution that is under way stands on the task's row, with its policy, so that an outcome needs no
other row; a holder that is lost is charged for exactly that execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepwell_server.domain.spine.executions import OpenStep, dump_open, load_open
from stepwell_server.domain.spine.frames import Frame, FrameAnswer, News, Outcome, Rejected
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import Micros

JOB_PRIORITY = 5
"""Jobs are taken oldest due first, whether new or tried again."""

_TIMED_OUT = Failure("JobTimeoutError", "JOB_TIMEOUT")
_LOST = Failure("WorkerLost", "WORKER_LOST")
_EXHAUSTED = Failure("JobMaxAttemptsExceeded", "JOB_MAX_ATTEMPTS_EXCEEDED", non_retryable=True)


class JobStatus(StrEnum):
    """The stored status of a job. Its task tells whether an open job is executing."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Execution:
    """How one execution ended, and what that makes of the job."""

    status: JobStatus
    attempts: int
    began_at: Micros | None
    failure: Failure | None
    fence: int | None
    """Lease whose holder reported it. None: it ended by itself, and whatever the holder says is stale."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How an execution of a job ended, and perhaps the job with it."""

    id: int
    at: Micros
    execution: Execution


@dataclass(slots=True)
class Job:
    """A job as one transaction sees it."""

    task: Task
    now: Micros
    lease_now: Micros
    rules: Rules
    ended: Execution | None = None
    """The execution that ended in this transaction."""

    has_parked = False
    """A job cannot be paused by itself."""
    is_contradicted = False
    """Its holder knows one execution only."""

    @property
    def ending(self) -> Execution | None:
        """How the job ended for good, in this transaction."""
        return None if self.ended is None or self.ended.status is JobStatus.OPEN else self.ended

    # ---- what the worker reports

    def begin_batch(self, frames: Sequence[Frame]) -> None:
        """Do nothing: one frame says it all."""

    def apply(self, frame: Frame, session_id: str) -> FrameAnswer:
        """Take the outcome over. Any other frame uses its number up and changes nothing else."""
        before = self.task
        try:
            wake_at = self._take(frame)
        except StepwellError as refusal:
            self.task = before._replace(frame_number=frame.number)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, before.stop, revision=before.revision, refusal=refusal)
        return FrameAnswer(frame.number, Verdict.ACCEPTED, Stop.NONE, True, wake_at, self.task.revision)

    def _take(self, frame: Frame) -> Micros | None:
        match frame.body:
            case Outcome() as outcome:
                self.task = self.task.advanced(frame.number, self.task.open_steps)
                return self._end(outcome.failure, outcome.retry_after, self.task.fence)
            case Rejected() as rejected:
                raise rejected.refusal
            case _:
                raise InvalidField("a job has one frame, Outcome; send no other", field="body")

    def repeat(self, frame: Frame) -> FrameAnswer:
        """Answer a frame that was applied before."""
        released = self.task.status is not TaskStatus.PROCESSING
        wake_at = self.task.run_at if released else None
        return FrameAnswer(frame.number, Verdict.REPEATED, Stop.NONE, released, wake_at, self.task.revision)

    def _end(self, failure: Failure | None, retry_after: Micros = 0, fence: int | None = None) -> Micros | None:
        """The execution is over, by the report of that lease. Returns when the next one is, if there is one."""
        opened = self._open
        failure = None if failure is None else failure.shortened()
        if failure is None:
            self._close(JobStatus.COMPLETED, opened.attempt, None, fence)
        elif failure.non_retryable or not opened.policy.retry.allows_after(opened.attempt):
            self._close(JobStatus.FAILED, opened.attempt, failure, fence)
        else:
            self._close(JobStatus.OPEN, opened.attempt, failure, fence)
            run_at = self.now + max(retry_after, opened.policy.retry.delay_after(opened.attempt))
            self.task = self.task.released(self.now, run_at, Reason.RETRY, JOB_PRIORITY)
            return run_at
        return None

    def _close(self, status: JobStatus, attempts: int, failure: Failure | None, fence: int | None = None) -> None:
        self.ended = Execution(status, attempts, self.task.claimed_at, failure, fence)

    @property
    def _open(self) -> OpenStep:
        (opened,) = load_open(self.task.open_steps)
        return opened

    # ---- what happens by itself

    def news(self, answers: tuple[FrameAnswer, ...], *, again: bool) -> News:
        """News for the worker besides: the job is lost, if its execution is open for too long."""
        if self._open.ends_at > self.now:
            return News(answers, revision=self.task.revision, next_timer=self._open.ends_at)
        lease = Held(self.task.id, self.task.fence)
        self.end_overtime()
        return News(answers, stale=lease.lost())

    def end_overtime(self) -> bool:
        """Take the job from a holder whose execution is open for too long."""
        if self._open.ends_at <= self.now:
            self._end(_TIMED_OUT)
        return False

    def claim(self, owner: Owner, fence: int, attempts: int, policy: StepPolicy) -> bool:
        """Lease the job for its next execution. False: a lost holder had the last one, and the job has failed.

        The execution of a lost holder is closed here: its task would forget it if the next holder never gets it.
        """
        if self.task.open_steps:
            attempts = self._open.attempt
            self._close(JobStatus.OPEN, attempts, _LOST)
        if not policy.retry.allows_after(attempts):
            self._close(JobStatus.FAILED, attempts, _EXHAUSTED)
            return False
        ends_at = self.now + policy.timeout + self.rules.timeout_margin
        claimed = self.task.claimed(owner, fence, self.lease_now, self.rules.times)
        self.task = claimed._replace(
            revision=claimed.revision + 1,
            claimed_at=self.now,
            interruptions=0,
            open_steps=dump_open([OpenStep("", attempts + 1, ends_at, policy)]),
        )
        return True

    def give_up(self, attempts: int, policy: StepPolicy, failure: Failure) -> None:
        """Count an execution as failed that could not even begin, because no worker could do it."""
        opened = dump_open([OpenStep("", attempts + 1, self.now, policy)])
        self.task = self.task._replace(open_steps=opened, claimed_at=self.now)
        self._end(failure)
