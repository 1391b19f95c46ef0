"""Runs that have no ground any more: they start over, and all that they have said is answered before."""

from __future__ import annotations

import pytest

from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.errors_pb2 import ERROR_REASON_INVALID_FIELD, ItemError
from tests.sdk.stage import slept, waiting
from tests.sdk.test_held_work import Worker

LATE = waiting("work", attempts=1)
"""The step of "nap" whose execution the server has given up, as it took too long."""
REFUSED = ItemError(reason=ERROR_REASON_INVALID_FIELD)


@pytest.fixture
async def worker() -> Worker:
    return Worker(max_tasks=2)


async def started_over(worker: Worker) -> list[str]:
    """Let a result come too late: its run must start over, while its two frames are not answered. What that sends."""
    worker.welcome()
    await worker.task(steps=[slept("sleep")])
    return await worker.receive(resolved=pb.Resolved(steps=[LATE]))


async def test_a_result_that_came_too_late_starts_the_run_over_when_all_it_said_is_answered(worker: Worker) -> None:
    assert await started_over(worker) == []
    assert await worker.ack(1) == []
    assert await worker.receive(number=2, refused=REFUSED) == ["need_state"]
    assert worker.leases() == [(1, 1)]

    assert await worker.task(steps=[slept("sleep"), LATE]) == ["suspend"]
    assert [frame.number for frame in worker.unacked()] == [3]  # after the two that were sent before


async def test_what_a_run_that_starts_over_has_said_is_sent_again_on_another_stream(worker: Worker) -> None:
    """Else the server would miss its number, and refuse all that follows."""
    await started_over(worker)
    await worker.ack(1)
    worker.dialogue.disconnected()

    assert worker.welcome((1, 1)) == ["finish", "credit:1"]
    assert await worker.task(steps=[slept("sleep")]) == []  # a Task that does not know how that ended
    assert await worker.ack(2) == ["need_state"]

    worker.dialogue.disconnected()
    assert worker.welcome((1, 1)) == ["need_state", "credit:1"]


async def test_a_run_that_is_over_by_what_it_had_said_does_not_start_over(worker: Worker) -> None:
    await started_over(worker)
    await worker.ack(1)

    assert (await worker.ack(2, released=True), worker.leases()) == (["credit:1"], [])


async def test_a_worker_does_not_leave_before_all_is_answered_that_a_run_has_said_that_starts_over(
    worker: Worker,
) -> None:
    await started_over(worker)
    worker.held.drain()
    await worker.ack(1)
    assert not worker.held.quiet.is_set()

    await worker.ack(2)

    assert worker.held.quiet.is_set()
