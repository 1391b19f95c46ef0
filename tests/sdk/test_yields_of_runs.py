"""A run that was handed out for a number of steps, and yields after them."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell import Retry
from stepwell.worker.host import Phase
from tests.sdk.stage import LATER, Stage, done, settle, slept


def steps(count: int) -> Any:
    async def program(event: Any, step: Any) -> list[int]:
        return [await step.do(f"s{n}", lambda n=n: n) for n in range(count)]

    return program


async def test_it_yields_after_its_steps_and_is_forgotten(stage: Stage) -> None:
    """Behaviour 107."""
    run = await stage.begin(steps(3), max_steps=2)
    assert stage.kinds() == ["step_done:s0 +s1"]
    await stage.ack(run, 1)

    (result, suspend) = stage.take()
    assert (result.step_done.name, suspend.suspend.cached, suspend.suspend.yields) == ("s1", False, True)
    await stage.ack(run, 2, 3, released=True)

    assert run.phase is Phase.DROPPED
    assert (stage.let_go_work, stage.take()) == ([run], [])


async def test_it_goes_on_where_it_yielded(stage: Stage) -> None:
    run = await stage.begin(steps(3), done("s0", "0"), done("s1", "1"), max_steps=2)

    assert stage.kinds() == ["step_done:s2", "finish"]
    await stage.ack(run, 1, 2, released=True)


async def test_steps_that_are_cached_do_not_count(stage: Stage) -> None:
    await stage.begin(steps(4), done("s0"), done("s1"), done("s2"), max_steps=1)

    assert stage.kinds() == ["step_done:s3", "finish"]


async def test_without_a_limit_it_does_not_yield(stage: Stage) -> None:
    run = await stage.begin(steps(3))
    await stage.ack(run, 1)
    await stage.ack(run, 2)

    assert stage.kinds() == ["step_done:s0 +s1", "step_done:s1 +s2", "step_done:s2", "finish"]


async def test_of_steps_side_by_side_no_more_begin_than_are_allowed(stage: Stage) -> None:
    began: list[str] = []

    async def program(event: Any, step: Any) -> None:
        await asyncio.gather(*(step.do(name, lambda name=name: began.append(name)) for name in "abc"))

    await stage.begin(program, max_steps=2)

    assert began == ["a", "b"]
    assert stage.kinds() == ["step_done:a", "step_done:b", "suspend"]


async def test_announced_bodies_are_counted_when_they_are_announced(stage: Stage) -> None:
    began: list[str] = []

    async def program(event: Any, step: Any) -> None:
        await step.do("first", lambda: None)
        await asyncio.gather(*(step.do(name, lambda name=name: began.append(name)) for name in "abc"))

    run = await stage.begin(program, max_steps=2)
    assert stage.kinds() == ["step_done:first +a"]
    await stage.ack(run, 1)

    assert began == ["a"]
    assert stage.kinds() == ["step_done:a", "suspend"]


async def test_a_body_that_still_executes_is_waited_for(stage: Stage) -> None:
    gate = asyncio.Event()

    async def program(event: Any, step: Any) -> None:
        await asyncio.gather(step.do("slow", gate.wait), step.do("next", lambda: None))

    await stage.begin(program, max_steps=1)
    assert stage.kinds() == []

    gate.set()
    await settle()
    assert stage.kinds() == ["step_done:slow", "suspend"]


async def test_a_wait_counts_and_a_run_that_waits_suspends_as_ever(stage: Stage) -> None:
    async def program(event: Any, step: Any) -> None:
        await step.sleep("nap", "1 hour")
        await step.do("work", lambda: None)

    run = await stage.begin(program, max_steps=1)
    (wait, suspend) = stage.take()
    assert (wait.wait.name, suspend.suspend.cached, suspend.suspend.yields) == ("nap", True, False)
    await stage.ack(run, 1, 2, released=False)
    await stage.resolve(run, slept("nap"))

    (suspend,) = stage.take()
    assert suspend.suspend.yields


async def test_a_run_that_waits_and_could_go_on_yields(stage: Stage) -> None:

    async def program(event: Any, step: Any) -> None:
        async def quick() -> None:
            for name in "ab":
                await step.do(name, lambda: None)

        await asyncio.gather(step.sleep("nap", "1 hour"), quick())

    run = await stage.begin(program, max_steps=2)
    assert stage.kinds() == ["wait:nap +a"]
    await stage.ack(run, 1)

    (result, suspend) = stage.take()
    assert (result.step_done.name, suspend.suspend.yields) == ("a", True)


async def test_a_retry_that_is_waited_for_suspends_as_ever(stage: Stage) -> None:
    def fails() -> None:
        raise OSError

    async def program(event: Any, step: Any) -> None:
        await step.do("a", fails, retries=Retry(limit=1))

    run = await stage.begin(program, max_steps=1)
    assert stage.kinds() == ["step_failed:a"]
    await stage.ack(run, 1, wake_at=LATER)

    (suspend,) = stage.take()
    assert suspend.suspend.cached


async def test_what_came_meanwhile_is_heard_before_it_yields_again(stage: Stage) -> None:
    run = await stage.begin(steps(2), max_steps=1)
    assert stage.kinds() == ["step_done:s0", "suspend"]

    await stage.ack(run, 1, 2, released=False)
    assert (run.phase, stage.kinds()) == (Phase.HELD, [])
    await stage.resolve(run, slept("other"))

    assert stage.kinds() == ["suspend"]
