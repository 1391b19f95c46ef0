"""Views of hooks for clients: the status, and the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from stepwell.payloads import from_payload
from stepwell.retry import Retry, from_policy
from stepwell.v1 import hooks_pb2 as pb
from stepwell.views import Failure, instant, numbers_of, stored_failure


class HookStatus(StrEnum):
    """Where a hook stands. The last three but `UNKNOWN` are ends."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        """Whether only a retry leads on from here."""
        return self in (HookStatus.COMPLETED, HookStatus.FAILED, HookStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class HookInfo:
    """A hook as it stands. `attempts` counts executions that began; `error` is what the last one failed with.

    `payload` is None in lists. `next_attempt_at` is None while it executes, and when it has ended.
    """

    id: str
    name: str
    status: HookStatus
    attempts: int
    max_attempts: int | None
    retry: Retry
    idempotency_key: str
    payload: Any = None
    error: Failure | None = None
    created_at: datetime | None = None
    process_at: datetime | None = None
    last_attempt_at: datetime | None = None
    next_attempt_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HookTarget:
    """A webhook that hooks of a name go to. `disabled`: its receiver answered 410, and it waits to be put again.

    `secrets` has one that was made for it, told once, to the caller that puts it.
    """

    name: str
    url: str
    disabled: bool
    secrets: tuple[str, ...] = field(default=(), repr=False)
    created_at: datetime | None = None
    updated_at: datetime | None = None


_STATUSES = {
    pb.HOOK_STATUS_PENDING: HookStatus.PENDING,
    pb.HOOK_STATUS_PROCESSING: HookStatus.PROCESSING,
    pb.HOOK_STATUS_COMPLETED: HookStatus.COMPLETED,
    pb.HOOK_STATUS_FAILED: HookStatus.FAILED,
    pb.HOOK_STATUS_CANCELLED: HookStatus.CANCELLED,
}
_NUMBERS = {status: number for number, status in _STATUSES.items()}


def hook_status_numbers(given: HookStatus | str | Iterable[HookStatus | str] | None) -> list[pb.HookStatus.ValueType]:
    """The wire's numbers of one status or several. ValueError if a status cannot be looked for."""
    return numbers_of(_NUMBERS, given)


def hook_info(hook: pb.Hook) -> HookInfo:
    """A hook as users see it."""
    return HookInfo(
        id=hook.hook_id,
        name=hook.name,
        status=_STATUSES.get(hook.status, HookStatus.UNKNOWN),
        attempts=hook.attempts,
        max_attempts=hook.retry.max_attempts if hook.retry.HasField("max_attempts") else None,
        retry=from_policy(hook.retry),
        idempotency_key=hook.idempotency_key,
        payload=from_payload(hook.payload),
        error=stored_failure(hook.failure) if hook.HasField("failure") else None,
        created_at=instant(hook, "created_at"),
        process_at=instant(hook, "process_at"),
        last_attempt_at=instant(hook, "last_attempt_at"),
        next_attempt_at=instant(hook, "next_attempt_at"),
        ended_at=instant(hook, "ended_at"),
    )


def hook_target(target: pb.HookTarget, secrets: Iterable[str] = ()) -> HookTarget:
    """A target as users see it."""
    return HookTarget(
        name=target.name,
        url=target.url,
        disabled=target.disabled,
        secrets=tuple(secrets),
        created_at=instant(target, "created_at"),
        updated_at=instant(target, "updated_at"),
    )
