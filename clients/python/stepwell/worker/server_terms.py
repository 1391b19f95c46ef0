"""The terms of a connection: what the server's Welcome said that runs and leases work by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.durations import to_datetime
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.server_pb2 import Limits
from stepwell.workflows.steps import Timers

_YEAR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a worker between one Welcome and the next. The defaults are the server's own."""

    limits: Limits = field(default_factory=Limits)
    max_steps: float = math.inf
    max_timer: timedelta = _YEAR
    max_attempts: float = 6
    step_timeout: float = 600.0
    virtual_clock: bool = False
    lease: float = 30.0
    heartbeat_interval: float = 10.0
    ack_window: float = 10.0
    max_credit: int = 1_000_000
    database_id: str = ""
    origin: datetime | None = None  # the database's time at 0 of the worker's clock, or a little later

    @property
    def holds_for(self) -> float:
        """Seconds after the start of its last renewal at which a worker must have stopped a task by itself."""
        return self.lease - min(self.lease / 3, self.heartbeat_interval / 2)

    @property
    def longest_standstill(self) -> float:
        """Seconds without a turn of its loop after which a worker trusts no task that was sent to it meanwhile."""
        return max(self.ack_window, self.heartbeat_interval) / 2

    def timers(self, at: float) -> Timers:
        """How far ahead a step may wait from this second of the worker's clock on.

        A virtual clock may have moved since it was heard of: only the server can tell its time.
        """
        if self.origin is None or self.virtual_clock:
            return Timers(self.max_timer)
        return Timers(self.max_timer, self.origin + timedelta(seconds=at) + self.max_timer)


def origin_of(now: Timestamp, asked_at: float) -> datetime | None:
    """The database's time at 0 of the worker's clock, by an answer to what was sent then. It is never too early."""
    return to_datetime(now) - timedelta(seconds=asked_at) if now.seconds else None


def terms_of(welcome: pb.Welcome, greeted_at: float) -> Terms:
    """The terms that a Welcome offers; what it leaves out is the default. `greeted_at` is when its Hello was sent."""
    default = Terms()
    policy = welcome.default_step_policy
    limits = welcome.limits
    return Terms(
        limits=limits,
        max_steps=limits.max_steps_per_run or math.inf,
        max_timer=limits.max_timer.ToTimedelta() if limits.HasField("max_timer") else _YEAR,
        max_attempts=attempts_of(policy, default.max_attempts),
        step_timeout=_seconds(policy.timeout, default.step_timeout),
        virtual_clock=welcome.virtual_clock,
        lease=_seconds(welcome.lease, default.lease),
        heartbeat_interval=_seconds(welcome.heartbeat_interval, default.heartbeat_interval),
        ack_window=_seconds(welcome.ack_window, default.ack_window),
        max_credit=welcome.max_credit or default.max_credit,
        database_id=welcome.database_id,
        origin=origin_of(welcome.now, greeted_at),
    )


def attempts_of(policy: pb.StepPolicy, default: float) -> float:
    """How many executions a policy allows."""
    if policy.retry.unlimited:
        return math.inf
    return policy.retry.max_attempts or default


def _seconds(duration: Duration, default: float) -> float:
    return duration.seconds + duration.nanos / 1e9 or default
