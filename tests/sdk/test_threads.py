"""The worker's threads: as many as needed, results on the loop, nothing lost."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from stepwell.threads import ThreadPool
from tests.sdk.stage import Stage


async def call(pool: ThreadPool, job: Any) -> Any:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pool.call(job, result.set_result)
    return await result


async def test_every_result_comes_back_to_the_loop() -> None:
    pool = ThreadPool(4)

    results = await asyncio.gather(*(call(pool, lambda n=n: n) for n in range(1000)))

    assert results == list(range(1000))
    pool.close()


async def test_jobs_run_side_by_side_up_to_the_size() -> None:
    pool = ThreadPool(3)
    together = threading.Barrier(3)

    names = await asyncio.gather(
        *(call(pool, lambda: (together.wait(10), threading.current_thread().name)[1]) for _ in range(3))
    )

    assert len(set(names)) == 3
    pool.close()


async def test_a_thread_is_used_again_before_another_is_started() -> None:
    pool = ThreadPool(8)

    names = {await call(pool, lambda: threading.current_thread().name) for _ in range(20)}

    assert names == {"stepwell-step-0"}
    pool.close()


async def test_a_body_in_a_thread_sees_the_context_of_the_function(stage: Stage) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")

    async def order(event: Any, step: Any) -> Any:
        tenant.set("acme")
        return await step.do("a", tenant.get)

    await stage.begin(order)

    assert stage.take()[1].finish.output.json == '"acme"'


async def test_a_body_that_raises_what_a_future_cannot_hold_fails_its_step(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> Any:
        return await step.do("a", lambda: next(iter(())))

    run = await stage.begin(order)
    assert stage.take()[0].step_failed.failure.name == "StopIteration"

    await stage.ack(run, 1)
    assert stage.take()[0].finish.failure.name == "StopIteration"
