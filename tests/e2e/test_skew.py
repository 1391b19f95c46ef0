"""Servers whose own clocks are ten minutes wrong decide exactly as others do: the database's clock is the only one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc import aio

from tests.support.calls.triggers import Triggers, at, status_of
from tests.support.calls.wakes import Sidecar, is_due, wake_at
from tests.support.databases.postgres import PostgresServer
from tests.support.servers.servers import start_in_process, start_process
from tests.support.workers.frames import returned
from tests.support.workers.workers import HandWorker

SKEWS = (-600, 600)
MOST = 60.0
"""Seconds that a story may take: far less than the clocks are wrong by."""


def faketime() -> Path:
    """The library that moves a process's clock, where the machine has it."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed")
    return found[0]


@asynccontextmanager
async def skewed_process(url: str, skew: int) -> AsyncIterator[aio.Channel]:
    """A server process whose wall clock is wrong by so many seconds."""
    moved = {"LD_PRELOAD": str(faketime()), "FAKETIME": f"{skew:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    async with start_process(url, "--dispatch", "external", **moved) as server, server.channel() as channel:
        yield channel


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_server_process_with_a_wrong_clock_decides_as_any_other(postgres_url: str, skew: int) -> None:
    async with asyncio.timeout(MOST), skewed_process(postgres_url, skew) as channel:
        await _work_goes_by_the_database(channel)


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_server_that_is_given_a_wrong_time_decides_as_any_other(
    postgres_url: str, skew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall, nanoseconds = time.time, time.time_ns
    async with asyncio.timeout(MOST), start_in_process(postgres_url, dispatch="external") as served:
        monkeypatch.setattr(time, "time", lambda: wall() + skew)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + skew * 10**9)
        await _work_goes_by_the_database(served.channel)


async def _work_goes_by_the_database(channel: aio.Channel) -> None:
    """Hooks five minutes ahead are not due, those of now are, and what is held stays so."""
    hooks, sidecar = Triggers(channel), Sidecar(channel)
    worker = HandWorker(channel, (), hooks=("note", "other"))
    await worker.connect(credit=10)
    now = await hooks.now()
    ahead = await hooks.trigger("ahead", process_at=now + 300)
    assert at(ahead.process_at) == pytest.approx(now + 300, abs=1e-5)

    async with sidecar.follow() as follower:
        said = await follower.first()
        asked = await sidecar.ask()
        for answer in (said, asked):
            assert wake_at(answer.next_wake) == pytest.approx(now + 300, abs=1e-5)
            assert 0 <= at(answer.now) - now < MOST
        assert (await sidecar.process()).handed_out == 0

        await hooks.trigger("now", name="other")
        await follower.until(is_due)
        assert (await sidecar.process()).handed_out == 1

    job = await worker.take()
    assert job.task.key == "now"
    await worker.beat(job)  # acknowledged, and by now swept or not: the lease holds
    held = await sidecar.ask(names=["other"])
    assert 0 < at(held.next_wake.wake_at) - at(held.now) <= 30
    await job.tell(returned())
    ended = await hooks.get("now")
    assert status_of(ended) == "COMPLETED" and now <= at(ended.ended_at) < now + MOST
    assert status_of(await hooks.get("ahead")) == "PENDING"
    await worker.break_off()


async def test_replicas_with_clocks_twenty_minutes_apart_agree(postgres: PostgresServer, postgres_url: str) -> None:
    """What one stores the other hands out, neither early nor late."""
    async with asyncio.timeout(MOST):
        async with skewed_process(postgres_url, -600) as slow, skewed_process(postgres_url, 600) as fast:
            worker = HandWorker(fast, (), hooks=("note",))
            await worker.connect(credit=10)
            hooks = Triggers(slow)
            soon = await hooks.now() + 1
            await hooks.trigger("soon", process_at=soon)
            await hooks.trigger("ahead", process_at=soon + 300)

            while not (await Sidecar(fast).process()).handed_out:
                assert await Sidecar(slow).next_wake() == pytest.approx(soon, abs=1e-5)

            assert await hooks.now() >= soon
            job = await worker.take()
            assert job.task.key == "soon"
            await job.tell(returned())
            assert at((await hooks.get("soon")).last_attempt_at) >= soon
            await worker.break_off()
