"""The worker's threads: as many as needed, results on the loop, nothing lost."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from stepwell.worker.threads import ThreadPool
from tests.sdk.stage import LATER, Stage, pending


async def call(pool: ThreadPool, job: Any) -> Any:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pool.call(job, result.set_result)
    return await result


async def test_every_result_comes_back_to_the_loop() -> None:
    pool = ThreadPool(4)

    results = await asyncio.gather(*(call(pool, lambda n=n: n) for n in range(1000)))

    assert results == list(range(1000))
    pool.close()


async def test_one_result_that_cannot_be_taken_does_not_hold_up_the_others(raised: list[BaseException]) -> None:
    pool = ThreadPool(1)
    gate, done = threading.Event(), asyncio.Event()
    pool.call(lambda: gate.wait(10), lambda _result: 1 // 0)
    pool.call(lambda: None, lambda _result: done.set())
    pool._is_waking = True  # so that both are there when the loop looks
    gate.set()
    while len(pool._results) < 2:
        await asyncio.sleep(0)
    pool._deliver()

    assert done.is_set()
    assert [type(error) for error in raised] == [ZeroDivisionError]
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


class Scarce:
    """A system that has so many threads to give, and no more until it is told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        monkeypatch.setattr("stepwell.worker.threads.Thread", self._thread)

    def _thread(self, **given: Any) -> threading.Thread:
        thread = threading.Thread(**given)
        start = thread.start

        def start_if_any() -> None:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            start()

        thread.start = start_if_any  # type: ignore[method-assign]
        return thread


async def test_where_no_further_thread_can_be_started_those_that_are_do_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, pool = Scarce(monkeypatch, 1), ThreadPool(3)
    gate, together = threading.Event(), threading.Barrier(2)
    first = asyncio.ensure_future(call(pool, lambda: gate.wait(10)))
    second = asyncio.ensure_future(call(pool, lambda: "second"))
    await asyncio.sleep(0)

    gate.set()
    assert await asyncio.gather(first, second) == [True, "second"]

    system.left = 1  # and what could not be started is not lost for good
    assert await asyncio.gather(*(call(pool, lambda: together.wait(10) >= 0) for _ in range(2))) == [True, True]
    pool.close()


async def test_a_body_that_no_thread_can_be_started_for_fails_its_step_not_the_worker(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Scarce(monkeypatch, 0)
    stage.pool = pool = ThreadPool(1)

    async def order(event: Any, step: Any) -> Any:
        return await step.do("a", lambda: 1)

    run = await stage.begin(order)
    failure = stage.take()[0].step_failed.failure
    assert (failure.name, failure.message) == ("RuntimeError", "can't start new thread")

    system.left = 1
    await stage.ack(run, 1, wake_at=LATER)
    await stage.ack(run, 2, released=False)
    await stage.resolve(run, pending("a", attempts=1))
    stage.take()
    await stage.ack(run, 3)
    while not stage.sent:
        await asyncio.sleep(0)
    assert stage.kinds()[0] == "step_done:a"
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
