"""What a step cannot be asked for: raised into the function, by the name of the argument, with nothing sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell.worker.server_terms import Terms
from tests.sdk.stage import Stage

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
YEAR = timedelta(days=365)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda step: step.do("a", lambda: 1, timeout=0), "the timeout of a step"),
        (lambda step: step.do("a", lambda: 1, timeout="366 days"), "the timeout of a step is at most 365 days"),
        (lambda step: step.do("a", lambda: 1, retries={"delay": "366 days"}), "the delay of a retry is at most 365"),
        (lambda step: step.do("a", lambda: 1, retries={"max_delay": "366 days"}), "the max_delay of a retry is at"),
        (lambda step: step.wait_for_event("a", type=None), "INVALID_EVENT_TYPE"),
        (lambda step: step.wait_for_event("a", type="go", timeout="366 days"), "the timeout is from 1 second to 365"),
        (lambda step: step.sleep("a", "366 days"), "the duration of a sleep is at most 365 days, not 366 days"),
        (lambda step: step.sleep_until("a", 1e300), "an instant lies in the years 1 to 9999"),
        (lambda step: step.sleep_until("a", NOON + YEAR + SECOND), "the instant of a sleep is at most 365 days ahead"),
    ],
)
async def test_an_argument_of_a_step_that_cannot_be_is_raised_into_the_function(
    stage: Stage, call: Any, told: str
) -> None:
    async def order(event: Any, step: Any) -> None:
        with pytest.raises(ValueError, match=told):
            await call(step)

    stage.terms = Terms(origin=NOON)
    await stage.begin(order)
    (finish,) = stage.take()
    assert finish.HasField("finish") and not finish.finish.HasField("failure")


@pytest.mark.parametrize(
    ("instant", "terms"),
    [
        (NOON - YEAR, Terms(origin=NOON)),
        (NOON + YEAR, Terms(origin=NOON)),
        (NOON + 2 * YEAR, Terms(origin=NOON, virtual_clock=True)),
        (NOON + 2 * YEAR, Terms()),
    ],
    ids=["past", "a year ahead", "virtual clock", "unknown clock"],
)
async def test_an_instant_that_the_server_may_accept_is_left_to_the_server(
    stage: Stage, instant: datetime, terms: Terms
) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep_until("a", instant)

    stage.terms = terms
    await stage.begin(order)
    assert stage.kinds() == ["wait:a", "suspend"]
