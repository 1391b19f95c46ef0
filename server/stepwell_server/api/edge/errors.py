"""One table from refusals to gRPC codes, and the one shape in which they leave the server."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus
from grpc import StatusCode

from stepwell_server.domain.values import errors

DOMAIN = "stepwell.v1"
DETAILS_KEY = "grpc-status-details-bin"

CODES: dict[type[errors.StepwellError], StatusCode] = {
    errors.Internal: StatusCode.INTERNAL,
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.MalformedRequest: StatusCode.INVALID_ARGUMENT,
    errors.InvalidField: StatusCode.INVALID_ARGUMENT,
    errors.EnumValueUnknown: StatusCode.INVALID_ARGUMENT,
    errors.DurationOutOfRange: StatusCode.INVALID_ARGUMENT,
    errors.TimestampOutOfRange: StatusCode.INVALID_ARGUMENT,
    errors.PageTokenInvalid: StatusCode.INVALID_ARGUMENT,
    errors.PageSizeInvalid: StatusCode.INVALID_ARGUMENT,
    errors.UpdateMaskInvalid: StatusCode.INVALID_ARGUMENT,
    errors.RequestIdInvalid: StatusCode.INVALID_ARGUMENT,
    errors.InvalidNamespace: StatusCode.INVALID_ARGUMENT,
    errors.ClockMovesForwardOnly: StatusCode.INVALID_ARGUMENT,
    errors.IdempotencyKeyReused: StatusCode.FAILED_PRECONDITION,
    errors.DatabaseUnavailable: StatusCode.UNAVAILABLE,
    errors.DatabaseSlow: StatusCode.UNAVAILABLE,
    errors.ShuttingDown: StatusCode.UNAVAILABLE,
    errors.Conflict: StatusCode.ABORTED,
    errors.ServerBusy: StatusCode.RESOURCE_EXHAUSTED,
    errors.StreamLimit: StatusCode.RESOURCE_EXHAUSTED,
    errors.RateLimited: StatusCode.RESOURCE_EXHAUSTED,
    errors.HandlerLimit: StatusCode.RESOURCE_EXHAUSTED,
    errors.ServerDeadline: StatusCode.DEADLINE_EXCEEDED,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.NamespaceNotFound: StatusCode.NOT_FOUND,
    errors.NamespaceAlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.ClockNotVirtual: StatusCode.FAILED_PRECONDITION,
    errors.PayloadTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.PayloadTooDeep: StatusCode.INVALID_ARGUMENT,
    errors.PayloadNotJson: StatusCode.INVALID_ARGUMENT,
    errors.BatchTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.InvalidWorkflowName: StatusCode.INVALID_ARGUMENT,
    errors.InvalidInstanceId: StatusCode.INVALID_ARGUMENT,
    errors.InvalidEventType: StatusCode.INVALID_ARGUMENT,
    errors.InvalidStepName: StatusCode.INVALID_ARGUMENT,
    errors.InvalidSessionId: StatusCode.INVALID_ARGUMENT,
    errors.DuplicateHandler: StatusCode.INVALID_ARGUMENT,
    errors.HelloRequired: StatusCode.INVALID_ARGUMENT,
    errors.WorkflowNotFound: StatusCode.NOT_FOUND,
    errors.InstanceNotFound: StatusCode.NOT_FOUND,
    errors.InstanceIdAlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.InstanceTerminal: StatusCode.FAILED_PRECONDITION,
    errors.RunNotFound: StatusCode.NOT_FOUND,
    errors.StepNotFound: StatusCode.NOT_FOUND,
    errors.PendingEventsLimit: StatusCode.RESOURCE_EXHAUSTED,
    errors.StepTypeMismatch: StatusCode.FAILED_PRECONDITION,
    errors.MaxStepsExceeded: StatusCode.FAILED_PRECONDITION,
    errors.InvalidHookName: StatusCode.INVALID_ARGUMENT,
    errors.InvalidHookId: StatusCode.INVALID_ARGUMENT,
    errors.HookNotFound: StatusCode.NOT_FOUND,
    errors.HookIdAlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.HookCompleted: StatusCode.FAILED_PRECONDITION,
    errors.HookEnded: StatusCode.FAILED_PRECONDITION,
    errors.HookTargetNotFound: StatusCode.NOT_FOUND,
    errors.ProcessDisabled: StatusCode.FAILED_PRECONDITION,
    errors.LeaseLost: StatusCode.ABORTED,
    errors.RunSuperseded: StatusCode.ABORTED,
    errors.HelloTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.ProtocolUnsupported: StatusCode.FAILED_PRECONDITION,
    errors.Superseded: StatusCode.ABORTED,
    errors.FrameRate: StatusCode.RESOURCE_EXHAUSTED,
    errors.SlowConsumer: StatusCode.RESOURCE_EXHAUSTED,
    errors.SessionHasStream: StatusCode.FAILED_PRECONDITION,
    errors.SessionNotRegistered: StatusCode.FAILED_PRECONDITION,
    errors.SsrfBlocked: StatusCode.INVALID_ARGUMENT,
    errors.InvalidWebhookUrl: StatusCode.INVALID_ARGUMENT,
    errors.WebhooksDisabled: StatusCode.FAILED_PRECONDITION,
}


def code_of(error: errors.StepwellError) -> StatusCode:
    """The gRPC code, which tells the caller what to do."""
    return CODES[type(error)]


def to_status(error: errors.StepwellError) -> RpcStatus:
    """The one error shape that every client can parse: code, reason, metadata."""
    number, _ = code_of(error).value
    details: list[Message] = [ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)]
    if "field" in error.metadata:
        violation = BadRequest.FieldViolation(field=error.metadata["field"], description=str(error))
        details.append(BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        wait = Duration()
        wait.FromMicroseconds(round(error.retry_after * 1_000_000))
        details.append(RetryInfo(retry_delay=wait))
    return RpcStatus(code=number, message=str(error), details=[_packed(detail) for detail in details])


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed
