"""Every refusal the server can give, each with the reason that clients match on.

    StepwellError
    ├── Internal                      a bug; the log has the rest
    ├── InvalidRequest                the caller must change the request
    │   ├── MalformedRequest
    │   ├── InvalidField
    │   ├── EnumValueUnknown
    │   ├── DurationOutOfRange
    │   ├── TimestampOutOfRange
    │   ├── PageTokenInvalid
    │   ├── PageSizeInvalid
    │   ├── UpdateMaskInvalid
    │   ├── RequestIdInvalid
    │   ├── InvalidNamespace
    │   ├── ClockMovesForwardOnly
    │   ├── PayloadTooLarge
    │   ├── PayloadTooDeep
    │   ├── PayloadNotJson
    │   ├── BatchTooLarge
    │   ├── InvalidWorkflowName
    │   ├── InvalidInstanceId
    │   ├── InvalidEventType
    │   ├── InvalidStepName
    │   ├── InvalidSessionId
    │   ├── InvalidHookName
    │   ├── InvalidHookId
    │   ├── DuplicateHandler
    │   ├── HelloRequired
    │   ├── SsrfBlocked
    │   └── InvalidWebhookUrl
    ├── IdempotencyKeyReused
    ├── DatabaseUnavailable           repeat the call
    │   └── DatabaseSlow
    ├── ShuttingDown                  repeat the call
    ├── Conflict
    ├── ServerBusy                    come back after `retry_after`
    ├── StreamLimit
    ├── RateLimited
    ├── HandlerLimit
    ├── ServerDeadline
    ├── Unauthenticated
    ├── PermissionDenied
    ├── NamespaceNotFound
    ├── NamespaceAlreadyExists
    ├── ClockNotVirtual
    ├── WorkflowNotFound
    ├── InstanceNotFound
    ├── InstanceIdAlreadyExists
    ├── InstanceTerminal
    ├── RunNotFound
    ├── StepNotFound
    ├── PendingEventsLimit
    ├── StepTypeMismatch
    ├── MaxStepsExceeded
    ├── HookNotFound
    ├── HookIdAlreadyExists
    ├── HookCompleted
    ├── HookEnded
    ├── HookTargetNotFound
    ├── ProcessDisabled
    ├── LeaseLost                     drop the task
    │   └── RunSuperseded
    ├── HelloTimeout
    ├── ProtocolUnsupported
    ├── Superseded
    ├── FrameRate
    ├── SlowConsumer
    ├── SessionHasStream
    ├── SessionNotRegistered
    └── WebhooksDisabled

The metadata of an error has the keys that the comment of its reason in errors.proto lists: a client never parses a
sentence.
"""

from __future__ import annotations

from typing import ClassVar

LONGEST_VALUE = 100
"""Characters of a value in the metadata: more would not fit into the trailers of a call."""


class StepwellError(Exception):
    """A refusal with a machine-readable reason: the name of a value of `ErrorReason`, without its prefix."""

    reason: ClassVar[str]

    def __init__(self, message: str, *, retry_after: float | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds; None where waiting does not help
        self.metadata = {name: str(value)[:LONGEST_VALUE] for name, value in metadata.items()}


class Internal(StepwellError):
    reason = "INTERNAL"


class InvalidRequest(StepwellError):
    """The caller must change the request; `field` in the metadata says where, if one field is at fault."""

    reason = "INVALID_FIELD"


class MalformedRequest(InvalidRequest):
    reason = "MALFORMED_REQUEST"


class InvalidField(InvalidRequest):
    reason = "INVALID_FIELD"


class EnumValueUnknown(InvalidRequest):
    reason = "ENUM_VALUE_UNKNOWN"


class DurationOutOfRange(InvalidRequest):
    reason = "DURATION_OUT_OF_RANGE"


class TimestampOutOfRange(InvalidRequest):
    reason = "TIMESTAMP_OUT_OF_RANGE"


class PageTokenInvalid(InvalidRequest):
    reason = "PAGE_TOKEN_INVALID"


class PageSizeInvalid(InvalidRequest):
    reason = "PAGE_SIZE_INVALID"


class UpdateMaskInvalid(InvalidRequest):
    reason = "UPDATE_MASK_INVALID"


class RequestIdInvalid(InvalidRequest):
    reason = "REQUEST_ID_INVALID"


class InvalidNamespace(InvalidRequest):
    reason = "INVALID_NAMESPACE"


class ClockMovesForwardOnly(InvalidRequest):
    reason = "CLOCK_MOVES_FORWARD_ONLY"


class IdempotencyKeyReused(StepwellError):
    reason = "IDEMPOTENCY_KEY_REUSED"


class DatabaseUnavailable(StepwellError):
    """The database did not answer, or the outcome of a commit is unknown."""

    reason = "DATABASE_UNAVAILABLE"


class DatabaseSlow(DatabaseUnavailable):
    """The database answers, and did not take this: in the time that it has, or for want of room."""


class ShuttingDown(StepwellError):
    reason = "SHUTTING_DOWN"


class Conflict(StepwellError):
    """The transaction lost against others more often than it may be tried again."""

    reason = "CONFLICT"


class ServerBusy(StepwellError):
    reason = "SERVER_BUSY"


class StreamLimit(StepwellError):
    reason = "STREAM_LIMIT"


class RateLimited(StepwellError):
    reason = "RATE_LIMITED"


class HandlerLimit(StepwellError):
    reason = "HANDLER_LIMIT"


class ServerDeadline(StepwellError):
    reason = "SERVER_DEADLINE"


class Unauthenticated(StepwellError):
    reason = "UNAUTHENTICATED"


class PermissionDenied(StepwellError):
    reason = "PERMISSION_DENIED"


class NamespaceNotFound(StepwellError):
    reason = "NAMESPACE_NOT_FOUND"


class NamespaceAlreadyExists(StepwellError):
    reason = "NAMESPACE_ALREADY_EXISTS"


class ClockNotVirtual(StepwellError):
    reason = "CLOCK_NOT_VIRTUAL"


class PayloadTooLarge(InvalidRequest):
    reason = "PAYLOAD_TOO_LARGE"


class PayloadTooDeep(InvalidRequest):
    reason = "PAYLOAD_TOO_DEEP"


class PayloadNotJson(InvalidRequest):
    reason = "PAYLOAD_NOT_JSON"


class BatchTooLarge(InvalidRequest):
    reason = "BATCH_TOO_LARGE"


class InvalidWorkflowName(InvalidRequest):
    reason = "INVALID_WORKFLOW_NAME"


class InvalidInstanceId(InvalidRequest):
    reason = "INVALID_INSTANCE_ID"


class InvalidEventType(InvalidRequest):
    reason = "INVALID_EVENT_TYPE"


class InvalidStepName(InvalidRequest):
    reason = "INVALID_STEP_NAME"


class InvalidSessionId(InvalidRequest):
    reason = "INVALID_SESSION_ID"


class DuplicateHandler(InvalidRequest):
    reason = "DUPLICATE_HANDLER"


class HelloRequired(InvalidRequest):
    reason = "HELLO_REQUIRED"


class WorkflowNotFound(StepwellError):
    reason = "WORKFLOW_NOT_FOUND"


class InstanceNotFound(StepwellError):
    reason = "INSTANCE_NOT_FOUND"


class InstanceIdAlreadyExists(StepwellError):
    reason = "INSTANCE_ID_ALREADY_EXISTS"


class InstanceTerminal(StepwellError):
    """The instance has ended; only a restart can change that."""

    reason = "INSTANCE_TERMINAL"


class RunNotFound(StepwellError):
    reason = "RUN_NOT_FOUND"


class StepNotFound(StepwellError):
    reason = "STEP_NOT_FOUND"


class PendingEventsLimit(StepwellError):
    reason = "LIMIT_PENDING_EVENTS"


class StepTypeMismatch(StepwellError):
    reason = "STEP_TYPE_MISMATCH"


class MaxStepsExceeded(StepwellError):
    reason = "MAX_STEPS_EXCEEDED"


class InvalidHookName(InvalidRequest):
    reason = "INVALID_HOOK_NAME"


class InvalidHookId(InvalidRequest):
    reason = "INVALID_HOOK_ID"


class HookNotFound(StepwellError):
    reason = "HOOK_NOT_FOUND"


class HookIdAlreadyExists(StepwellError):
    reason = "HOOK_ID_ALREADY_EXISTS"


class HookCompleted(StepwellError):
    reason = "HOOK_COMPLETED"


class HookEnded(StepwellError):
    reason = "HOOK_ENDED"


class HookTargetNotFound(StepwellError):
    reason = "HOOK_TARGET_NOT_FOUND"


class ProcessDisabled(StepwellError):
    reason = "PROCESS_DISABLED"


class LeaseLost(StepwellError):
    """The caller no longer holds the task: it must drop it."""

    reason = "LEASE_LOST"


class RunSuperseded(LeaseLost):
    """The run was ended or restarted by a call."""

    reason = "RUN_SUPERSEDED"


class HelloTimeout(StepwellError):
    reason = "HELLO_TIMEOUT"


class ProtocolUnsupported(StepwellError):
    reason = "PROTOCOL_UNSUPPORTED"


class Superseded(StepwellError):
    reason = "SUPERSEDED"


class FrameRate(StepwellError):
    reason = "FRAME_RATE"


class SlowConsumer(StepwellError):
    reason = "SLOW_CONSUMER"


class SessionHasStream(StepwellError):
    reason = "SESSION_HAS_STREAM"


class SessionNotRegistered(StepwellError):
    reason = "SESSION_NOT_REGISTERED"


class SsrfBlocked(InvalidRequest):
    """The webhook is not out on the public internet, so this server does not talk to it."""

    reason = "SSRF_BLOCKED"


class InvalidWebhookUrl(InvalidRequest):
    reason = "INVALID_WEBHOOK_URL"


class WebhooksDisabled(StepwellError):
    reason = "WEBHOOKS_DISABLED"
