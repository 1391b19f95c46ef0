"""A job: its handler is executed once, and how it ended is said once, whatever happens to the worker."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel

from stepwell import JobContext, NonRetryableError, Retry, hook
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.worker.job import Job
from stepwell.worker.server_terms import Terms
from stepwell.worker.threads import ThreadPool
from tests.sdk.stage import Stage, settle


@dataclass
class Receipt:
    order: int


class Model(BaseModel):
    order: int


async def begin(stage: Stage, function: Any, payload: str = '{"order": 7}', **fields: Any) -> Job:
    """Hand out a hook, and let its handler come as far as it can."""
    definition = hook("send-receipt", retry=fields.pop("retry", None))(function)
    job = Job(stage, definition)
    given = pb.HookInput(payload=Payload(json=payload) if payload else None, **fields)
    job.attach(1, 2, pb.Task(key="r-1", hook=given))
    await settle()
    return job


def outcome(stage: Stage) -> pb.Outcome:
    """The one thing that was said."""
    (frame,) = stage.take()
    assert (frame.task_id, frame.fence, frame.number) == (1, 2, 1)
    assert frame.HasField("outcome")
    return frame.outcome


async def test_a_handler_gets_its_payload_and_context(stage: Stage) -> None:
    got: list[Any] = []

    async def handler(payload: Any, ctx: JobContext) -> str:
        got.extend((payload, ctx))
        return "dropped"

    created = Timestamp(seconds=1_700_000_000)
    job = await begin(stage, handler, attempt=2, max_attempts=5, idempotency_key="key", created_at=created)

    assert not outcome(stage).HasField("failure")
    at = datetime.fromtimestamp(1_700_000_000, UTC)
    assert got == [{"order": 7}, JobContext("r-1", "send-receipt", 2, 5, "key", at)]
    job.acked(1, pb.Ack(released=True))
    assert stage.let_go_work == [job]


async def test_without_a_maximum_there_is_none_in_the_context(stage: Stage) -> None:
    got: list[Any] = []
    await begin(stage, lambda payload, ctx: got.append(ctx.max_attempts))

    assert got == [None]


@pytest.mark.parametrize("type", [Receipt, Model])
async def test_a_payload_is_built_into_the_type_of_the_handler(stage: Stage, type: Any) -> None:
    got: list[Any] = []

    def handler(payload: Any) -> None:
        got.append(payload)

    handler.__annotations__["payload"] = type
    await begin(stage, handler)

    assert got == [type(order=7)]
    assert not outcome(stage).HasField("failure")


async def test_a_payload_that_was_left_out_is_the_empty_object(stage: Stage) -> None:
    got: list[Any] = []
    await begin(stage, got.append, payload="")

    assert got == [{}]


async def test_a_payload_that_does_not_fit_fails_the_execution_not_the_worker(stage: Stage) -> None:
    async def handler(payload: Receipt) -> None:
        raise AssertionError("never called")

    await begin(stage, handler, payload="[]")

    assert outcome(stage).failure.name == "TypeError"


async def test_handlers_that_are_not_async_run_in_threads(stage: Stage) -> None:
    stage.pool = pool = ThreadPool(1)
    ended = asyncio.Event()
    names: list[str] = []
    stage.send = lambda frame: ended.set()  # type: ignore[method-assign]

    await begin(stage, lambda payload: names.append(threading.current_thread().name))
    await asyncio.wait_for(ended.wait(), 10)
    pool.close()

    assert names[0].startswith("stepwell-step")


async def test_a_failed_handler_says_where(stage: Stage) -> None:
    async def handler(payload: Any) -> None:
        raise OSError("no route")

    await begin(stage, handler)

    assert "in handler" in outcome(stage).failure.details


async def test_an_async_handler_needs_no_thread(stage: Stage) -> None:
    stage.pool = type("Busy", (), {"call": lambda self, job, done: None})()

    async def handler(payload: Any) -> None: ...

    await begin(stage, handler)

    assert not outcome(stage).HasField("failure")


async def test_a_handler_that_raises_has_failed_and_may_be_tried_again(stage: Stage) -> None:
    async def handler(payload: Any) -> None:
        raise ConnectionError("no route")

    await begin(stage, handler)

    failure = outcome(stage).failure
    assert (failure.name, failure.message, failure.non_retryable) == ("ConnectionError", "no route", False)


async def test_an_error_that_is_not_retryable_ends_the_job(stage: Stage) -> None:
    def handler(payload: Any) -> None:
        raise NonRetryableError("no such customer", name="NoCustomer")

    await begin(stage, handler)

    failure = outcome(stage).failure
    assert (failure.name, failure.non_retryable) == ("NoCustomer", True)


@pytest.mark.parametrize(("error", "ends"), [(LookupError("x"), True), (OSError("x"), False)])
async def test_the_author_says_which_errors_are_worth_a_retry(stage: Stage, error: Exception, ends: bool) -> None:
    def handler(payload: Any) -> None:
        raise error

    await begin(stage, handler, retry=Retry(is_retryable=lambda error: isinstance(error, OSError)))

    assert outcome(stage).failure.non_retryable is ends


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()])
async def test_a_handler_cannot_end_the_worker(stage: Stage, error: BaseException) -> None:
    async def handler(payload: Any) -> None:
        raise error

    asked: list[Exception] = []
    await begin(stage, handler, retry=Retry(is_retryable=asked.append))  # type: ignore[arg-type]

    failure = outcome(stage).failure
    assert (failure.name, failure.non_retryable, asked) == (type(error).__name__, False, [])


async def test_an_execution_that_takes_too_long_has_failed(stage: Stage) -> None:
    stopped = asyncio.Event()

    async def handler(payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await begin(stage, handler, timeout=Duration(seconds=600))
    stage.clock.advance(599)
    await settle()
    assert stage.take() == []

    stage.clock.advance(1)
    await settle()
    failure = outcome(stage).failure
    assert (failure.name, failure.message, failure.non_retryable) == ("JobTimeoutError", "JOB_TIMEOUT", False)
    assert stopped.is_set()


async def test_a_thread_that_ends_after_its_time_says_nothing_more(stage: Stage) -> None:
    results: list[Any] = []
    stage.pool = type("Later", (), {"call": lambda self, job, done: results.append((job(), done))})()
    await begin(stage, lambda payload: None, timeout=Duration(seconds=1))
    stage.clock.advance(1)
    assert outcome(stage).failure.name == "JobTimeoutError"

    ((result, done),) = results
    done(result)
    await settle()

    assert stage.take() == []


async def test_on_a_virtual_clock_the_server_counts_the_time(stage: Stage) -> None:
    stage.terms = Terms(virtual_clock=True)
    await begin(stage, lambda payload: asyncio.Event().wait(), timeout=Duration(seconds=1))

    assert stage.clock.open_timers() == 0


async def test_an_execution_that_ends_in_time_leaves_no_timer(stage: Stage) -> None:
    await begin(stage, lambda payload: None, timeout=Duration(seconds=1))

    assert stage.clock.open_timers() == 0


async def test_a_job_that_is_dropped_stops_and_says_nothing(stage: Stage) -> None:
    cancelled = asyncio.Event()

    async def handler(payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    job = await begin(stage, handler, timeout=Duration(seconds=1))
    job.drop()
    job.drop()
    stage.clock.advance(2)
    await settle()

    assert cancelled.is_set()
    assert (stage.take(), stage.let_go_work) == ([], [job])


async def test_the_report_is_kept_until_it_is_acknowledged(stage: Stage) -> None:
    job = await begin(stage, lambda payload: None)
    (frame,) = stage.take()

    assert list(job.unacked_frames()) == [frame]
    job.acked(7, pb.Ack())
    assert stage.let_go_work == []
    job.acked(1, pb.Ack())
    assert (list(job.unacked_frames()), stage.let_go_work) == ([], [job])


async def test_a_report_that_is_refused_is_the_last_word(stage: Stage) -> None:
    job = await begin(stage, lambda payload: None)
    job.refused(1, "INVALID_FIELD", "no")

    assert (list(job.unacked_frames()), stage.let_go_work) == ([], [job])
