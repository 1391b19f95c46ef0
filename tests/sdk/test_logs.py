"""The worker's log: an application's logging can break nothing but itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import hook
from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.job import Job
from tests.sdk.stage import Stage, settle

CLASHING = ("instance_id", "hook_id")


@pytest.fixture
def factory() -> Iterator[None]:
    """A record factory that sets fields which the worker's events have, too."""
    before = logging.getLogRecordFactory()

    def with_ids(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        for name in CLASHING:
            setattr(record, name, "of the application")
        return record

    logging.setLogRecordFactory(with_ids)
    yield
    logging.setLogRecordFactory(before)


class Raises(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise OSError("no space left on device")


@pytest.fixture
def broken() -> Iterator[None]:
    """A log that cannot be written at all."""
    log, filter = logging.getLogger("stepwell.worker"), Raises()
    log.addFilter(filter)
    yield
    log.removeFilter(filter)


async def failing(*_args: Any) -> None:
    raise LookupError("out of stock")


@pytest.fixture(params=["factory", "broken"])
def logging_fails(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


@pytest.mark.usefixtures("logging_fails")
async def test_a_run_that_failed_says_so_whatever_its_log_does(stage: Stage, raised: list[BaseException]) -> None:
    await stage.begin(failing)

    assert (stage.kinds(), raised) == (["finish"], [])


@pytest.mark.usefixtures("logging_fails")
async def test_so_does_a_step(stage: Stage, raised: list[BaseException]) -> None:
    gate = asyncio.Event()

    async def body() -> None:
        await gate.wait()
        await failing()

    async def order(event: Any, step: Any) -> None:
        await step.do("ship", body)

    await stage.begin(order)
    gate.set()
    await settle()

    assert (stage.kinds(), raised) == (["step_failed:ship"], [])


@pytest.mark.usefixtures("logging_fails")
async def test_so_does_a_job(stage: Stage, raised: list[BaseException]) -> None:
    Job(stage, hook("receipt")(failing)).attach(1, 1, pb.Task(key="r-1", hook=pb.HookInput()))
    await settle()

    assert (stage.kinds(), raised) == (["outcome"], [])


async def test_fields_that_clash_follow_the_event_as_text(
    stage: Stage, factory: None, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.begin(failing)

    said = [record for record in caplog.records if record.name == "stepwell.worker"]
    assert [record.getMessage() for record in said] == ["workflow_failed workflow=order instance_id=order-1"]
    assert "out of stock" in caplog.text
