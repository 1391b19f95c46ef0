"""Hooks: durable one-shot messages to a handler.

               claim                     returned
    pending ───────────▶ processing ───────────────▶ completed
       ▲                     │  │
       └── failed, retried ──┘  └── failed for good ──▶ failed        cancel: from pending and processing
       └───────────────────────────── retry ─────────── failed, cancelled

A hook that has not ended has a task of the same number. Of its status only the end is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell_server.domain.spine.events import is_event
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import JobStatus
from stepwell_server.domain.values.errors import HookCompleted, HookEnded, InvalidHookId, InvalidHookName
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.names import is_name
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import HOUR, MINUTE, SECOND, Micros
from stepwell_server.domain.values.traces import Trace, check_trace

HOOK_ID_LENGTH = 100
HOOK_NAME_LENGTH = 64
HOOK_RETRY = RetryPolicy(max_attempts=5, delay=SECOND, max_delay=MINUTE)
HOOK_TIMEOUT: Micros = 10 * MINUTE
"""Longest time of one execution."""
UNSERVED_FOR: Micros = 24 * HOUR
"""How long a hook is due before it fails because its name was never registered."""
HANDLER_NOT_FOUND = "HOOK_HANDLER_NOT_FOUND"

_HOOK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


class HookStatus(StrEnum):
    """Where a hook stands."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self not in (HookStatus.PENDING, HookStatus.PROCESSING)


@dataclass(frozen=True, slots=True)
class HookKey:
    """The key of a hook."""

    namespace: str
    hook_id: str


@dataclass(frozen=True, slots=True)
class NewHook:
    """A hook to store."""

    key: HookKey
    name: str
    payload: Payload
    idempotency_key: str
    process_at: Micros | None = None
    """None: at once."""
    retry: RetryPolicy = HOOK_RETRY
    trace: Trace = field(default_factory=dict)

    @property
    def handler(self) -> Handler:
        """Whom it goes to."""
        return Handler(self.key.namespace, TaskKind.HOOK, self.name)

    def due_at(self, stored_at: Micros) -> Micros:
        """When it is first due: not before it is stored, or it would overtake those that were due before it."""
        return max(stored_at, self.process_at or 0)

    def check(self) -> None:
        """Refuse a name, an id or a trace that breaks its rule, and the engine's own names."""
        check_trace(self.trace)
        check_hook_name(self.name)
        if is_event(self.name):
            raise InvalidHookName("this name is the engine's own", field="name", name=self.name)
        if not is_name(self.key.hook_id, HOOK_ID_LENGTH):
            raise InvalidHookId(
                f'a hook id is 1 to {HOOK_ID_LENGTH} letters, digits, "-" or "_", not beginning with "-"',
                field="hook_id",
                hook_id=self.key.hook_id,
            )


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook as it is stored."""

    id: int
    key: HookKey
    name: str
    status: HookStatus
    payload: Payload | None
    attempts: int
    retry: RetryPolicy
    idempotency_key: str
    failure: Failure | None
    created_at: Micros
    process_at: Micros
    last_attempt_at: Micros | None
    next_attempt_at: Micros | None
    ended_at: Micros | None
    trace: Trace = field(default_factory=dict)

    @property
    def handler(self) -> Handler:
        """Whom it goes to."""
        return Handler(self.key.namespace, TaskKind.HOOK, self.name)

    @property
    def policy(self) -> StepPolicy:
        """How it is executed."""
        return StepPolicy(self.retry, HOOK_TIMEOUT)

    def check_can_retry(self) -> None:
        """Refuse to execute what has been executed."""
        if self.status is HookStatus.COMPLETED:
            raise HookCompleted("the hook has been executed; trigger another one", hook_id=self.key.hook_id)

    def check_can_cancel(self) -> None:
        """Refuse to end what has ended."""
        if self.status.ended:
            raise HookEnded("the hook has ended", hook_id=self.key.hook_id, status=self.status)


@dataclass(frozen=True, slots=True)
class HookFilter:
    """Which hooks of a namespace are wanted."""

    namespace: str
    name: str = ""
    statuses: tuple[HookStatus, ...] = field(default_factory=tuple)

    def scope(self) -> list[object]:
        """The scope of a page token."""
        return [self.namespace, self.name, sorted(self.statuses)]


STORED = {
    HookStatus.PENDING: JobStatus.OPEN,
    HookStatus.PROCESSING: JobStatus.OPEN,
    HookStatus.COMPLETED: JobStatus.COMPLETED,
    HookStatus.FAILED: JobStatus.FAILED,
    HookStatus.CANCELLED: JobStatus.CANCELLED,
}
"""The stored form of each status."""


def is_hook_name(name: str) -> bool:
    """True for what can be the name of a hook."""
    return len(name) <= HOOK_NAME_LENGTH and _HOOK_NAME.fullmatch(name) is not None


def check_hook_name(name: str) -> None:
    """Refuse what cannot be the name of a hook."""
    if not is_hook_name(name):
        raise InvalidHookName(
            f'a hook is named by 1 to {HOOK_NAME_LENGTH} letters, digits, "-", "_" or ".", '
            "beginning with a letter, digit or underscore",
            field="name",
            name=name,
        )
