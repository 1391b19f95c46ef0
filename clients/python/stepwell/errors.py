"""Everything that Stepwell raises.

    Exception
    ├── CallFailed                    a call that the server refused, or that did not reach it
    │   └── TransactionRefused        one operation of a transaction was refused, so nothing was done
    ├── NonRetryableError             for you to raise in a step or a job: trying again is pointless
    ├── JobTimeoutError               a job's execution took longer than its timeout
    ├── PayloadInvalid                a value that is not JSON, too large or nested too deep
    ├── WorkflowEnded                 result() of an instance that did not complete
    │   ├── WorkflowFailed            it errored; `name` and `message` say how
    │   └── WorkflowTerminated        it was terminated
    ├── StepMisused                   a call of a step that cannot be
    │   ├── DuplicateStepKey          two steps of one name open at once
    │   ├── StepTypeMismatch          the name was used for another type of step
    │   ├── MaxStepsExceeded          the run has as many steps as it may have
    │   └── InvalidStepName           empty, or longer than 256 characters
    └── StepFailed                    a step that failed for good, as it was stored
        ├── StepTimeoutError          its execution took longer than its timeout
        ├── StepMaxAttemptsExceeded   it began as often as it may, without an end
        ├── StepResultInvalid         its result cannot be stored
        └── WaitForEventTimeoutError  no event came in time

A step that fails for good raises a `StepFailed` to the workflow function, with the name and message of the exception
that ended it. It also is an instance of that exception's class, so that `except PaymentDeclined` works as well as
`except StepFailed`. On a replay there is only what was stored, and the class is the one of that name, if this process
has exactly one. So a handler may rely on the text, the first time as on every replay. The exception itself is there
the first time only, as the `__cause__`, for tracebacks.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from stepwell.v1 import common_pb2, errors_pb2

_DOMAIN = "stepwell.v1"
_DETAILS_KEY = "grpc-status-details-bin"
_NAME_CHARACTERS = 256
_MESSAGE_CHARACTERS = 4 * 1024
_DETAILS_CHARACTERS = 16 * 1024
_LEFT_OUT = "\n...\n"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class CallFailed(Exception):
    """A call that the server refused, or that did not reach it.

    `code` says what to do, `reason` is the name of a value of `ErrorReason` without its prefix (empty if the error did
    not come from a Stepwell server), `metadata` holds the values that the message mentions.
    """

    def __init__(
        self, code: grpc.StatusCode, message: str, reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        about = ", ".join(f"{key}={value}" for key, value in sorted((metadata or {}).items()))
        super().__init__(f"{message} ({reason or code.name}{f': {about}' if about else ''})")
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})


class TransactionRefused(CallFailed):
    """One operation of a transaction was refused, so nothing was done; `operation` is its place among them, from 0."""

    def __init__(self, failure: CallFailed) -> None:
        super().__init__(failure.code, failure.message, failure.reason, failure.metadata)
        self.operation = int(failure.metadata["operation"])


class NonRetryableError(Exception):
    """Raise it in a step or a job to end it at once. `name` replaces the class name in what is stored."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name or type(self).__name__


class JobTimeoutError(Exception):
    """A job's execution took longer than its timeout."""

    def __init__(self) -> None:
        super().__init__("JOB_TIMEOUT")


class PayloadInvalid(Exception):
    """A value that cannot be sent: not JSON, too large or nested too deep. `reason` is the server's word for it."""

    def __init__(self, message: str, reason: str = "PAYLOAD_NOT_JSON") -> None:
        super().__init__(message)
        self.reason = reason


class WorkflowEnded(Exception):
    """The instance ended without a result."""


class WorkflowFailed(WorkflowEnded):
    """The instance errored: `name` and `message` are those of the exception that its workflow raised."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class WorkflowTerminated(WorkflowEnded):
    """The instance was terminated."""


class StepMisused(Exception):
    """A call of a step that cannot be; `code` is the word that the server has for it."""

    code = "INVALID_FIELD"

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.code}: {message}")


class DuplicateStepKey(StepMisused):
    """Two steps of one name are open at once: give each its own name."""

    code = "DUPLICATE_STEP_KEY"


class StepTypeMismatch(StepMisused):
    """The name was used for another type of step in this run."""

    code = "STEP_TYPE_MISMATCH"


class MaxStepsExceeded(StepMisused):
    """The run has as many steps as it may have."""

    code = "MAX_STEPS_EXCEEDED"


class InvalidStepName(StepMisused):
    """A step name is text of 1 to 256 characters."""

    code = "INVALID_STEP_NAME"


class StepFailed(Exception):
    """A step failed for good: `name` and `message` are those of the exception that ended it."""

    code = "STEP_FAILED"

    def __init__(self, message: str = "", name: str = "") -> None:
        super().__init__(message or self.code)
        self.name = name or type(self).__name__
        self.message = message or self.code


class StepTimeoutError(StepFailed):
    """The step's execution took longer than its timeout."""

    code = "STEP_TIMEOUT"


class StepMaxAttemptsExceeded(StepFailed):
    """The step began as often as it may, and none of its executions came to an end."""

    code = "STEP_MAX_ATTEMPTS_EXCEEDED"


class StepResultInvalid(StepFailed):
    """The step returned what cannot be stored. It is not tried again: it would return the same."""

    code = "STEP_RESULT_INVALID"


class WaitForEventTimeoutError(StepFailed):
    """No event came in time."""

    code = "WAIT_FOR_EVENT_TIMEOUT"


_STORED: Mapping[str, type[StepFailed]] = {
    cls.__name__: cls
    for cls in (StepTimeoutError, StepMaxAttemptsExceeded, StepResultInvalid, WaitForEventTimeoutError)
}


def failure_of(error: aio.AioRpcError, address: str = "") -> CallFailed:
    """The failure that grpc's error carries: in the server's own words if it sent any, else with the `address`."""
    status = _status_of(error.trailing_metadata())
    info = ErrorInfo()
    if status is not None and any(detail.Unpack(info) and info.domain == _DOMAIN for detail in status.details):
        return CallFailed(error.code(), status.message, info.reason, dict(info.metadata))
    return CallFailed(error.code(), _without_reason(error.code(), error.details() or "no details", address))


def retry_delay_of(metadata: aio.Metadata | None) -> float | None:
    """Seconds after which a server that refused a call wants to be asked again; None if it did not say."""
    status = _status_of(metadata)
    info = RetryInfo()
    if status is not None and any(detail.Unpack(info) for detail in status.details):
        delay: Duration = info.retry_delay
        return delay.ToTimedelta().total_seconds()
    return None


def _status_of(metadata: aio.Metadata | None) -> Status | None:
    for key, value in metadata or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return Status.FromString(value)
    return None


def _without_reason(code: grpc.StatusCode, details: str, address: str) -> str:
    """The text of an error that no Stepwell server sent: the address without an answer, and why."""
    match code:
        case grpc.StatusCode.UNAVAILABLE if address:
            return f"no server answers at {address}: {details.rpartition(': ')[2].rstrip(']')}"
        case grpc.StatusCode.DEADLINE_EXCEEDED if address:
            return f"no answer from {address} in time"
        case grpc.StatusCode.UNIMPLEMENTED if address:
            return f"what answers at {address} is no Stepwell server, or an older one"
    return details


def refusal_of(error: errors_pb2.ItemError) -> CallFailed:
    """The failure that one item of a batch, or one frame of a stream, was answered with."""
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    return CallFailed(code, error.message, reason_name(error.reason), dict(error.metadata))


def reason_name(reason: int) -> str:
    """The name of a value of `ErrorReason` without its prefix; a number that is not known stays a number."""
    value = errors_pb2.ErrorReason.DESCRIPTOR.values_by_number.get(reason)
    return str(reason) if value is None else value.name.removeprefix("ERROR_REASON_")


def to_failure(error: BaseException, *, non_retryable: bool = False) -> common_pb2.Failure:
    """The stored form of an exception: the name of its class, or its own, its message, and its traceback."""
    name = getattr(error, "name", "") if isinstance(error, NonRetryableError | StepFailed) else ""
    ends = non_retryable or isinstance(error, NonRetryableError | StepMaxAttemptsExceeded | StepResultInvalid)
    return common_pb2.Failure(
        name=text_of(name or type(error).__name__)[:_NAME_CHARACTERS],
        message=_told(error)[:_MESSAGE_CHARACTERS],
        non_retryable=ends,
        details=_stack_of(error),
    )


def _stack_of(error: BaseException) -> str:
    """The stack trace of an exception that was raised. The middle of a long one is left out: both ends tell more."""
    if error.__traceback__ is None:
        return ""
    try:
        stack = text_of("".join(traceback.format_exception(error)))
    except Exception:  # it was made to look at, and has a bug of its own
        return ""
    if len(stack) <= _DETAILS_CHARACTERS:
        return stack
    half = (_DETAILS_CHARACTERS - len(_LEFT_OUT)) // 2
    return stack[:half] + _LEFT_OUT + stack[-half:]


def _told(error: BaseException) -> str:
    """The message of an exception. Of a group, the messages of its members, which alone tell the cause."""
    if not isinstance(error, BaseExceptionGroup):
        return text_of(error)
    members = "; ".join(f"{type(member).__name__}: {_told(member)}" for member in error.exceptions)
    return f"{text_of(error)}: {members}"


def from_failure(failure: common_pb2.Failure, original: type[Exception] | None = None) -> StepFailed:
    """The exception that a stored failure of a step is raised as; see the module's docstring.

    `original` is the class of what failed, if that is known; else it is looked for by its name.
    """
    name = failure.name or "UNKNOWN_ERROR"
    try:
        return _made(_STORED.get(name) or _stand_in(original or _class_of(failure)), name, failure.message)
    except Exception:  # a class of the user's that must be made in a way of its own
        return _made(StepFailed, name, failure.message)


def raised_for(error: BaseException, failure: common_pb2.Failure) -> StepFailed:
    """The exception for the function after an error of a body here: the same as on a replay, caused by the error."""
    if isinstance(error, StepFailed):
        return error
    raised = from_failure(failure, type(error) if isinstance(error, Exception) else None)
    raised.__cause__ = error
    return raised


def _made(cls: type[StepFailed], name: str, message: str) -> StepFailed:
    """An exception past its constructor: that of a user's class may want arguments that were not stored."""
    error = cls.__new__(cls)
    error.args = (message,)
    error.name = name
    error.message = message
    return error


def _class_of(failure: common_pb2.Failure) -> type[Exception] | None:
    """The one class that a stored failure can have come from, if there is exactly one."""
    found = {cls for cls in _subclasses(Exception) if cls.__name__ == failure.name and "_stands_in" not in vars(cls)}
    if not found and failure.non_retryable:
        return NonRetryableError  # under a name of its own
    return found.pop() if len(found) == 1 else None


def _stand_in(original: type[Exception] | None) -> type[StepFailed]:
    """A class that is both, a failed step and the original one; just a failed step if the two do not mix."""
    if original is None or issubclass(original, StopIteration):  # which no coroutine can raise
        return StepFailed
    if issubclass(original, StepFailed):
        return original
    try:
        return type(original.__name__, (StepFailed, original), dict(_STAND_IN))
    except Exception:  # two classes with a memory layout of their own, or one that refuses to be a base
        return StepFailed


# Attributes that the user's class may define otherwise: a property `message`, a frozen dataclass.
_STAND_IN: Mapping[str, Any] = {
    "__module__": __name__,
    "_stands_in": True,
    "__init__": StepFailed.__init__,
    "__str__": Exception.__str__,
    "__setattr__": Exception.__setattr__,
    "name": "",
    "message": "",
}


def _subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def text_of(value: object) -> str:
    """The text of a user's object, as the wire accepts it: no lone surrogates, no NUL."""
    try:
        text = str(value)
    except Exception:  # its __str__ has a bug of its own, which must not hide what happened
        return f"<{type(value).__name__} that cannot say what it is about>"
    return text.replace("\0", "").encode("utf-8", "replace").decode()
