"""Tasks: the durable tickets "advance this thing no earlier than run_at", and every change one can go through.

                       claim                         release, give back, lapse
    (new) ── pending ─────────▶ processing ──────────────────────────────────▶ pending
               │ ▲                  │ ▲
          park │ │ unpark     pause │ │ resume
               ▼ │                  ▼ │
              parked           (stop = pause; the next frame that releases it parks it)

A finished task is deleted. Every change is a function here: the task as it is under its lock goes in, the task as it
shall be comes out. Storage writes the result; nothing else changes a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Lease, LeaseTimes, Owner
from stepwell_server.domain.values.times import Micros

LOWEST_PRIORITY = 9
BEGUN_PRIORITY = 3
"""Work that has begun comes before new work."""


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    PROCESSING = "processing"
    PARKED = "parked"
    BLOCKED = "blocked"


class Reason(StrEnum):
    """Why a task is due."""

    RUN = "run"
    RESUME = "resume"
    RETRY = "retry"
    WAKE = "wake"
    TAKEOVER = "takeover"


class Stop(StrEnum):
    """The order to the holder of a task, for its next frame."""

    NONE = "none"
    PAUSE = "pause"


class Verdict(StrEnum):
    """The outcome of a call about a held task."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to schedule. One (handler, key) has at most one task."""

    handler: Handler
    key: str
    run_at: Micros | None = None
    """None: at once, by the clock of the transaction that stores it."""
    priority: int = LOWEST_PRIORITY
    reason: Reason = Reason.RUN
    run_number: int = 0
    payload: str | None = None
    id: int | None = None
    """None: the next number."""
    revision: int = 0
    lease: Lease | None = None
    """A worker holds it from the beginning."""


class Task(NamedTuple):
    """A task as it is stored. A tuple, because groups change thousands, and a dataclass takes ten times as long."""

    id: int
    handler: Handler
    key: str
    run_number: int
    reason: Reason
    priority: int
    run_at: Micros
    status: TaskStatus
    fence: int
    revision: int
    frame_number: int
    stop: Stop
    wake_again: bool
    interruptions: int
    acked: bool
    open_steps: str
    owner: Owner | None
    locked_until: Micros | None
    payload: str | None
    step_count: int = 0
    """Of a run: steps that count for its limit."""
    pending_events: int = 0
    """Of a run: events that no step has taken yet."""
    sticky_session: str | None = None
    """Session that keeps the run in memory, as of `cached_revision`."""
    cached_revision: int = 0
    claimed_at: Micros | None = None
    resolved_revision: int = 0
    """Of a run: revision at which something was last resolved by itself, and not by a frame."""

    # ---- taking and keeping

    def claimed(self, owner: Owner, fence: int, lease_now: Micros, times: LeaseTimes) -> Task:
        """Leased for the ack window only, under a fence that was never used before."""
        return self._replace(
            status=TaskStatus.PROCESSING,
            fence=fence,
            frame_number=0,
            owner=owner,
            acked=False,
            locked_until=lease_now + times.ack_window,
        )

    def renewed(self, owner: Owner, lease_now: Micros, times: LeaseTimes) -> Task:
        """Leased for its full length, to this connection. A task that its holder names has arrived."""
        return self._replace(owner=owner, acked=True, locked_until=lease_now + times.lease)

    def shortened(self, lease_now: Micros, times: LeaseTimes) -> Task:
        """Left a short grace, because the stream of its holder broke."""
        assert self.locked_until is not None
        return self._replace(locked_until=min(self.locked_until, lease_now + times.reconnect_grace))

    # ---- giving up

    def given_back(self) -> Task:
        """Pending again as it was before its claim, or parked if it was to pause: no holder is left to wait for."""
        free = self._replace(
            status=TaskStatus.PENDING,
            owner=None,
            locked_until=None,
            acked=False,
            revision=self.revision + 1,
            open_steps=self.open_steps if self.acked or self.frame_number else "",  # what never arrived never began
        )
        return free.parked() if self.stop is Stop.PAUSE else free

    def left(self, now: Micros) -> Task:
        """Pending again because its holder goes. Open executions stay noted, so that they are counted."""
        return self.given_back()._replace(
            run_at=now, reason=Reason.TAKEOVER, priority=min(self.priority, BEGUN_PRIORITY)
        )

    def lapsed(self, now: Micros) -> Task:
        """Pending again because its holder was lost, who may have begun what it never came to say."""
        unnoticed = self.acked and not self.frame_number and not self.open_steps
        return self.left(now)._replace(interruptions=self.interruptions + unnoticed)

    def released(self, now: Micros, run_at: Micros, reason: Reason, priority: int) -> Task:
        """Waiting for its next time; due at once if something came while it was held, parked if it is to pause."""
        return self.given_back()._replace(
            run_at=now if self.wake_again else run_at,
            reason=reason,
            priority=priority,
            wake_again=False,
            interruptions=0,
            open_steps="",
        )

    def advanced(self, frame_number: int, open_steps: str) -> Task:
        """One frame further: its number is remembered, and the revision tells images in memory apart."""
        return self._replace(
            frame_number=frame_number, revision=self.revision + 1, open_steps=open_steps, interruptions=0
        )

    # ---- from outside

    def woken(self, now: Micros, reason: Reason, priority: int) -> Task:
        """Due at once. A held task remembers it until it is released; a parked task until it is unparked."""
        match self.status:
            case TaskStatus.PENDING:
                return self if self.run_at <= now else self._replace(run_at=now, reason=reason, priority=priority)
            case TaskStatus.PROCESSING:
                return self._replace(wake_again=True)
            case TaskStatus.PARKED | TaskStatus.BLOCKED:
                return self

    def paused(self) -> Task:
        """Parked if it is not held; else its holder is told to stop at the next frame."""
        match self.status:
            case TaskStatus.PROCESSING:
                return self._replace(stop=Stop.PAUSE)
            case TaskStatus.PENDING:
                return self.parked()
            case TaskStatus.PARKED | TaskStatus.BLOCKED:
                return self

    def parked(self) -> Task:
        """Out of reach until it is unparked."""
        return self._replace(status=TaskStatus.PARKED, stop=Stop.NONE)

    def resumed(self, now: Micros, priority: int) -> Task:
        """Due at once if it was parked, so that nothing that came meanwhile is lost; else a pause is withdrawn."""
        match self.status:
            case TaskStatus.PARKED:
                return self._replace(
                    status=TaskStatus.PENDING,
                    run_at=now,
                    reason=Reason.RESUME,
                    priority=priority,
                    wake_again=False,
                )
            case TaskStatus.PROCESSING:
                return self._replace(stop=Stop.NONE)
            case TaskStatus.PENDING | TaskStatus.BLOCKED:
                return self

    def seized(self, fence: int) -> Task:
        """Taken from its holder at once, and due whatever it was: later frames of the old holder are stale."""
        return self.given_back()._replace(
            status=TaskStatus.PENDING,
            fence=fence,
            stop=Stop.NONE,
            wake_again=False,
            open_steps="",
            interruptions=0,
            sticky_session=None,
        )


def judge(task: Task | None, held: Held) -> Verdict:
    """Say whether a lease counts, given the task as it is under its lock. None: there is no task."""
    if task is None or task.fence != held.fence:
        return Verdict.STALE
    return Verdict.ACCEPTED if task.status is TaskStatus.PROCESSING else Verdict.STALE
