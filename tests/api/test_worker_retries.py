"""Policies of steps: how often a body is executed, and when again. The clock stands still, so that times are exact."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell.v1 import clock_pb2
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell.v1.common_pb2 import BACKOFF_CONSTANT, BACKOFF_EXPONENTIAL, BACKOFF_LINEAR, RetryPolicy
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, failed, finish, opening, seconds
from tests.support.workers.workers import Job

YEAR = 365 * 86_400


@pytest.fixture
async def flows(still: Served) -> Flows:
    """Instances of the workflow "order"."""
    return Flows(still.channel)


@pytest.fixture
async def job(still: Served, flows: Flows, hire_at: Hire) -> Job:
    """The instance "one", held by a worker."""
    worker = await hire_at(still)
    await flows.create("one")
    return await worker.take()


def retrying(**retry: Any) -> pb.StepPolicy:
    """A policy."""
    return pb.StepPolicy(retry=RetryPolicy(**retry))


async def delays(
    job: Job, server: Served, count: int, policy: pb.StepPolicy | None, step: str = "a"
) -> list[float | None]:
    """Seconds until the next execution, after each of so many failures. None: there is none."""
    now = (await ClockServiceStub(server.channel).GetClock(clock_pb2.GetClockRequest())).now
    found: list[float | None] = []
    for attempt in range(1, count + 1):
        ack = await job.tell(failed(step, attempt, policy=policy))
        found.append(_between(now, ack.wake_at) if ack.HasField("wake_at") else None)
    return found


def _between(earlier: Timestamp, later: Timestamp) -> float:
    return (later.ToMicroseconds() - earlier.ToMicroseconds()) / 1_000_000


DELAYS: list[tuple[dict[str, Any] | None, list[float | None]]] = [
    ({"max_attempts": 4, "delay": seconds(10), "backoff": BACKOFF_CONSTANT}, [10, 10, 10, None]),
    ({"max_attempts": 4, "delay": seconds(10), "backoff": BACKOFF_LINEAR}, [10, 20, 30, None]),
    ({"max_attempts": 4, "delay": seconds(10), "backoff": BACKOFF_EXPONENTIAL}, [10, 20, 40, None]),
    ({"max_attempts": 4, "delay": seconds(10)}, [10, 20, 40, None]),
    ({"max_attempts": 5, "delay": seconds(10), "max_delay": seconds(25)}, [10, 20, 25, 25, None]),
    ({"max_attempts": 4, "max_delay": seconds(4)}, [4, 4, 4, None]),
    ({"max_attempts": 4, "max_delay": seconds(15)}, [10, 15, 15, None]),
    ({"max_attempts": 1}, [None]),
    ({"max_attempts": 3, "delay": seconds(YEAR)}, [YEAR, YEAR, None]),
    ({"unlimited": True, "delay": seconds(0)}, [0, 0, 0, 0, 0, 0, 0, 0]),
    ({"unlimited": False, "delay": seconds(1)}, [1, 2, 4, 8, 16, None]),
    (None, [10, 20, 40, 80, 160, None]),
]


async def test_delays_grow_as_the_policy_says(job: Job, still: Served) -> None:
    for number, (retry, expected) in enumerate(DELAYS):
        policy = None if retry is None else retrying(**retry)
        assert await delays(job, still, len(expected), policy, f"s{number}") == expected, retry


REFUSED = [
    (retrying(max_attempts=0), "INVALID_FIELD"),
    (retrying(max_attempts=-1), "INVALID_FIELD"),
    (retrying(max_attempts=1_000_001), "INVALID_FIELD"),
    (retrying(delay=seconds(YEAR + 1)), "DURATION_OUT_OF_RANGE"),
    (retrying(max_delay=seconds(YEAR + 1)), "DURATION_OUT_OF_RANGE"),
    (retrying(delay=seconds(10), max_delay=seconds(9)), "INVALID_FIELD"),
    (pb.StepPolicy(timeout=seconds(YEAR + 1)), "DURATION_OUT_OF_RANGE"),
]


async def test_a_policy_that_breaks_a_rule_is_refused(job: Job) -> None:
    for policy, reason in REFUSED:
        assert await job.refused(failed("a", policy=policy)) == reason, policy
        assert await job.refused(begin(opening("a", policy=policy))) == reason, policy
    assert (await job.tell(finish())).released


async def test_a_policy_is_fixed_by_the_first_execution_that_is_stored(job: Job, still: Served, flows: Flows) -> None:
    first, later = retrying(max_attempts=2, delay=seconds(5)), retrying(max_attempts=9, delay=seconds(7))
    await job.tell(failed("a", policy=first))

    ack = await job.tell(failed("a", 2, policy=later))

    assert not ack.HasField("wake_at")
    step = (await flows.steps("one"))["a"]
    assert (step_status(step), step.attempts, step.max_attempts) == ("ERRORED", 2, 2)


async def test_a_failure_that_is_reported_again_when_its_retry_is_due_is_told_now(job: Job, still: Served) -> None:
    """Without a time it would be told that the step is never executed again."""
    clock = ClockServiceStub(still.channel)
    (sent,) = await job.send(failed("a", policy=retrying(max_attempts=3, delay=seconds(5))))
    first = (await job.answer(sent.number)).ack
    await clock.AdvanceClock(clock_pb2.AdvanceClockRequest(by=seconds(5)))
    await job.resolved()
    now = (await clock.GetClock(clock_pb2.GetClockRequest())).now

    await job.worker.say(sent)
    again = (await job.answer(sent.number)).ack

    assert first.wake_at == again.wake_at == now


async def test_a_step_says_what_its_policy_is(job: Job, flows: Flows) -> None:
    policy = pb.StepPolicy(retry=RetryPolicy(unlimited=True), timeout=seconds(1.5))
    await job.report(failed("forever", policy=policy), done("plain"))

    steps = await flows.steps("one")

    assert not steps["forever"].HasField("max_attempts")
    assert steps["forever"].timeout == seconds(1.5)
    assert (steps["plain"].max_attempts, steps["plain"].timeout.seconds) == (6, 600)


async def test_an_operator_can_change_what_holds_for_steps_that_say_nothing(
    start_server: StartServer, database_url: str, hire_at: Hire
) -> None:
    steps = {"max_attempts": 2, "delay": 3, "backoff": "constant", "timeout": 4}
    server = await start_server(database_url, virtual_clock=True, steps=steps)
    worker = await hire_at(server, connect=False)
    welcome = await worker.connect(credit=1)
    await Flows(server.channel).create("one")
    job = await worker.take()

    assert await delays(job, server, 2, None) == [3, None]
    default = welcome.default_step_policy
    assert (default.retry.max_attempts, default.retry.delay, default.timeout) == (2, seconds(3), seconds(4))
    assert default.retry.backoff == BACKOFF_CONSTANT
