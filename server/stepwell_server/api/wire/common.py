"""Values that all services share: domain to protobuf and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import common_pb2, errors_pb2
from stepwell_server.api.edge.errors import code_of
from stepwell_server.domain.namespaces import DEFAULT_NAMESPACE
from stepwell_server.domain.values.errors import DurationOutOfRange, InvalidField, StepwellError
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import LONGEST_DELAY, MOST_ATTEMPTS, Backoff, RetryPolicy
from stepwell_server.domain.values.times import SECOND, Micros

_BACKOFFS = {
    Backoff.CONSTANT: common_pb2.BACKOFF_CONSTANT,
    Backoff.LINEAR: common_pb2.BACKOFF_LINEAR,
    Backoff.EXPONENTIAL: common_pb2.BACKOFF_EXPONENTIAL,
}
_FROM_BACKOFFS = {number: backoff for backoff, number in _BACKOFFS.items()}


def timestamp_to_pb(instant: Micros) -> Timestamp:
    """An instant."""
    seconds, micros = divmod(instant, SECOND)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def timestamp_from_pb(instant: Timestamp) -> Micros:
    """An instant; finer digits than microseconds are cut off."""
    return instant.seconds * SECOND + instant.nanos // 1000


def optional_timestamp(instant: Micros | None) -> Timestamp | None:
    """An instant, if there is one."""
    return None if instant is None else timestamp_to_pb(instant)


def duration_to_pb(duration: Micros) -> Duration:
    """A duration."""
    seconds, micros = divmod(duration, SECOND)
    return Duration(seconds=seconds, nanos=micros * 1000)


def duration_from_pb(duration: Duration) -> Micros:
    """A duration; finer digits than microseconds are cut off."""
    return duration.seconds * SECOND + duration.nanos // 1000


def optional_duration(duration: Micros | None) -> Duration | None:
    """A duration, if there is one."""
    return None if duration is None else duration_to_pb(duration)


def duration_within(field: str, duration: Duration, longest: Micros) -> Micros:
    """A duration that may not be longer than this."""
    read = duration_from_pb(duration)
    if read > longest:
        raise DurationOutOfRange(f"{field} is longer than it can be", field=field)
    return read


def namespace_from_pb(name: str) -> str:
    """The namespace that a request names, or the default."""
    return name or DEFAULT_NAMESPACE


def payload_from_pb(payload: common_pb2.Payload) -> Payload | None:
    """A payload. None: it has no body, whether it is set or not, and that is no data."""
    match payload.WhichOneof("body"):
        case "json":
            return Payload(payload.json)
        case "binary":
            return Payload(binary=payload.binary, encoding=payload.encoding)
        case _:
            return None


def payload_to_pb(payload: Payload) -> common_pb2.Payload:
    """A payload."""
    if payload.binary is None:
        return common_pb2.Payload(json=payload.json)
    return common_pb2.Payload(binary=payload.binary, encoding=payload.encoding)


def failure_from_pb(failure: common_pb2.Failure) -> Failure:
    """Convert a failure."""
    return Failure(failure.name, failure.message, failure.non_retryable, failure.details)


def failure_to_pb(failure: Failure) -> common_pb2.Failure:
    """Convert a failure."""
    return common_pb2.Failure(
        name=failure.name,
        message=failure.message,
        non_retryable=failure.non_retryable,
        details=failure.details,
    )


def retry_to_pb(retry: RetryPolicy) -> common_pb2.RetryPolicy:
    """How something is retried."""
    policy = common_pb2.RetryPolicy(
        delay=duration_to_pb(retry.delay),
        backoff=_BACKOFFS[retry.backoff],
        max_delay=optional_duration(retry.max_delay),
    )
    if retry.max_attempts is None:
        policy.unlimited = True
    else:
        policy.max_attempts = retry.max_attempts
    return policy


def retry_from_pb(given: common_pb2.RetryPolicy, default: RetryPolicy) -> RetryPolicy:
    """How something is retried, with the default where nothing is said; a default gives way to what is said."""
    delay = duration_within("delay", given.delay, LONGEST_DELAY) if given.HasField("delay") else None
    longest = duration_within("max_delay", given.max_delay, LONGEST_DELAY) if given.HasField("max_delay") else None
    if delay is None:
        delay = default.delay if longest is None else min(default.delay, longest)
    if longest is None:
        longest = None if default.max_delay is None else max(delay, default.max_delay)
    elif longest < delay:
        raise InvalidField("max_delay must not be shorter than delay", field="max_delay")
    backoff = _FROM_BACKOFFS.get(given.backoff, default.backoff)
    return RetryPolicy(_attempts_from_pb(given, default), delay, backoff, longest)


def _attempts_from_pb(given: common_pb2.RetryPolicy, default: RetryPolicy) -> int | None:
    match given.WhichOneof("attempts"):
        case "max_attempts":
            if not 1 <= given.max_attempts <= MOST_ATTEMPTS:
                raise InvalidField(f"max_attempts must be 1 to {MOST_ATTEMPTS}", field="max_attempts")
            return given.max_attempts
        case "unlimited" if given.unlimited:
            return None
        case _:
            return default.max_attempts


def reason_to_pb(error: StepwellError) -> errors_pb2.ErrorReason.ValueType:
    """The reason of a refusal, as its enum has it."""
    return errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason}")


def item_error_to_pb(error: StepwellError) -> errors_pb2.ItemError:
    """The refusal of one item of a batch."""
    number, _ = code_of(error).value
    return errors_pb2.ItemError(code=number, reason=reason_to_pb(error), message=str(error), metadata=error.metadata)
