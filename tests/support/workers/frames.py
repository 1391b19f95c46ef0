"""Frames that workers send, by the names of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import Failure, Payload, RetryPolicy


def payload(json: str) -> Payload:
    """A payload of JSON text."""
    return Payload(json=json)


def seconds(count: float) -> Duration:
    """A duration."""
    duration = Duration()
    duration.FromMicroseconds(round(count * 1_000_000))
    return duration


def policy(max_attempts: int = 0, *, delay: float = 0.0, timeout: float = 0.0) -> pb.StepPolicy:
    """The policy of a step."""
    retry = RetryPolicy(delay=seconds(delay))
    if max_attempts:
        retry.max_attempts = max_attempts
    return pb.StepPolicy(retry=retry, timeout=seconds(timeout) if timeout else None)


def opening(name: str, attempt: int = 1, *, begun: bool = False, policy: pb.StepPolicy | None = None) -> pb.OpenStep:
    """A body that begins."""
    return pb.OpenStep(name=name, attempt=attempt, begun=begun, policy=policy)


def begin(*openings: pb.OpenStep, number: int = 0) -> pb.WorkerFrame:
    """Bodies begin."""
    return pb.WorkerFrame(begin_steps=pb.BeginSteps(), opens=openings, number=number)


def done(
    name: str, json: str = "1", attempt: int = 1, *, opens: Sequence[pb.OpenStep] = (), number: int = 0
) -> pb.WorkerFrame:
    """A body returned."""
    report = pb.StepDone(name=name, attempt=attempt, result=payload(json))
    return pb.WorkerFrame(step_done=report, opens=opens, number=number)


def failed(
    step: str, attempt: int = 1, *, policy: pb.StepPolicy | None = None, number: int = 0, **failure: Any
) -> pb.WorkerFrame:
    """A body failed."""
    said = Failure(**{"name": "Oops", "message": "it broke"} | failure)
    report = pb.StepFailed(name=step, attempt=attempt, failure=said, policy=policy)
    return pb.WorkerFrame(step_failed=report, number=number)


def sleep(name: str, duration: float, *, number: int = 0) -> pb.WorkerFrame:
    """A branch sleeps."""
    return pb.WorkerFrame(wait=pb.Wait(name=name, sleep=seconds(duration)), number=number)


def wait_for(name: str, event_type: str, timeout: float = 3600, *, number: int = 0) -> pb.WorkerFrame:
    """A branch waits for an event."""
    until = pb.EventWait(type=event_type, timeout=seconds(timeout))
    return pb.WorkerFrame(wait=pb.Wait(name=name, event=until), number=number)


def suspend(*, cached: bool = False, yields: bool = False, number: int = 0) -> pb.WorkerFrame:
    """Nothing is executing."""
    return pb.WorkerFrame(suspend=pb.Suspend(cached=cached, yields=yields), number=number)


def finish(json: str = "null", *, number: int = 0) -> pb.WorkerFrame:
    """The workflow returned."""
    return pb.WorkerFrame(finish=pb.Finish(output=payload(json)), number=number)


def fail(name: str = "Oops", message: str = "it broke", *, number: int = 0) -> pb.WorkerFrame:
    """The workflow failed."""
    return pb.WorkerFrame(finish=pb.Finish(failure=Failure(name=name, message=message)), number=number)


def need_state(offset: int = 0) -> pb.WorkerFrame:
    """The worker has forgotten the run."""
    return pb.WorkerFrame(need_state=pb.NeedState(offset=offset))


def task_ack() -> pb.WorkerFrame:
    """The task has arrived."""
    return pb.WorkerFrame(task_ack=pb.TaskAck())


def returned(*, number: int = 0) -> pb.WorkerFrame:
    """The handler of a hook returned."""
    return pb.WorkerFrame(outcome=pb.Outcome(), number=number)


def raised(name: str = "Oops", message: str = "it broke", *, number: int = 0, **failure: Any) -> pb.WorkerFrame:
    """The handler of a hook failed."""
    said = Failure(name=name, message=message, **failure)
    return pb.WorkerFrame(outcome=pb.Outcome(failure=said), number=number)
