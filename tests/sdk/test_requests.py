"""Request ids: random, but inside of a body the same whenever that body is executed again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import hook
from stepwell.request_ids import RequestIds, identified
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2 as workflows
from stepwell.worker.job import Job
from stepwell.worker.run import Run
from tests.sdk.stage import LATER, Stage, definition_for, pending, settle, task_of
from tests.support.patience import PATIENCE


def call(type: str) -> str:
    """The id that a call gets where it is made."""
    return identified(workflows.SendEventsItem(instance_id="other", type=type)).request_id


def calls(caller: RequestIds, *types: str) -> list[str]:
    return [caller.next_for(workflows.SendEventsItem(type=type)) for type in types]


async def ids_of(stage: Stage, step: str = "a", key: str = "order-1", **fields: Any) -> list[str]:
    """The ids of the calls that one step makes, in a process that has never seen it."""
    ids: list[str] = []

    async def body() -> None:
        ids.append(call("one"))
        ids.extend(await asyncio.gather(asyncio.to_thread(call, "two"), asyncio.to_thread(call, "three")))

    async def order(event: Any, steps: Any) -> None:
        await steps.do(step, body)

    run = Run(stage, definition_for(order), key)
    run.attach(1, 1, task_of(**fields))
    async with asyncio.timeout(PATIENCE):
        while len(ids) < 3:
            await asyncio.sleep(0)
    return ids


def test_outside_of_a_body_every_call_has_an_id_of_its_own() -> None:
    assert call("one") != call("one")


async def test_a_body_that_another_process_executes_again_makes_its_calls_under_the_same_ids(stage: Stage) -> None:
    ids = await ids_of(stage)

    assert len(set(ids)) == 3
    assert await ids_of(stage) == ids


@pytest.mark.parametrize(
    "other",
    [{"step": "b"}, {"key": "order-2"}, {"run_number": 1}, {"created_at": LATER}],
    ids=lambda other: next(iter(other)),
)
async def test_another_step_run_or_instance_has_other_ids(stage: Stage, other: dict[str, Any]) -> None:
    assert not {*await ids_of(stage)} & {*await ids_of(stage, **other)}


async def test_a_retry_makes_its_calls_under_the_ids_of_the_execution_that_failed(stage: Stage) -> None:
    ids: list[str] = []

    def body() -> None:
        ids.append(call("one"))
        raise ConnectionError("down")

    async def order(event: Any, step: Any) -> None:
        await step.do("a", body)

    run = await stage.begin(order)
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    await stage.resolve(run, pending("a", attempts=1))
    await stage.ack(run, 3)

    assert len(ids) == 2 and len(set(ids)) == 1


async def test_every_execution_of_a_hook_makes_its_calls_under_the_same_ids_and_no_other_hook_does(
    stage: Stage,
) -> None:
    ids: list[str] = []

    @hook("note")
    async def note(payload: Any) -> None:
        ids.append(call("one"))

    for attempt, key in ((1, "first"), (2, "first"), (1, "second")):
        given = pb.HookInput(attempt=attempt, idempotency_key=key)
        Job(stage, note).attach(1, attempt, pb.Task(key="h", hook=given))
    await settle()

    first, again, second = ids
    assert first == again != second


def test_equal_calls_of_one_body_are_told_apart_by_their_number() -> None:
    first, second = calls(RequestIds("body"), "one", "one")

    assert first != second
    assert calls(RequestIds("body"), "one", "one") == [first, second]


def test_a_body_that_takes_another_way_keeps_the_ids_of_what_it_asks_for_again() -> None:
    one, two = calls(RequestIds("body"), "one", "two")

    assert calls(RequestIds("body"), "three", "two", "one")[1:] == [two, one]
