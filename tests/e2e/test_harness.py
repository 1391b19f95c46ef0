"""The test kit as an author of workflows uses it: with a server of its own, started and stopped by the harness."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from datetime import timedelta

import pytest

from stepwell import App, CallFailed, Client, InstanceStatus, StepStatus, StepTimeoutError, workflow
from stepwell.testing import Harness, ServerDidNotStart, StillBusy, VirtualServer
from stepwell.v1.clock_pb2 import AdvanceClockResponse
from tests.support.servers.servers import start_in_process


@workflow("order")
async def order(event, step):
    try:
        await step.do("ship", lambda: asyncio.sleep(3600), timeout="1 minute", retries={"limit": 0})
    except StepTimeoutError:
        await step.sleep("wait", "30 days")
    return (await step.wait_for_event("approval", type="approval", timeout="335 days")).payload


@workflow("sleeper")
async def sleeper(event, step):
    await step.sleep("nap", "1 hour")


async def test_a_story_of_a_year_with_a_server_of_its_own() -> None:
    async with Harness(App(workflows=[order]), hangs_after="500 milliseconds") as h:
        began = await h.now()
        instance = await h.start(order, id="order-1")
        assert await h.advance("31 days") == began + timedelta(days=31)
        assert (await h.steps(instance))["ship"].status == StepStatus.ERRORED
        await h.advance("330 days")
        await h.send_event(instance, "approval", {"approved": True})

        assert await instance.result(timeout="5 seconds") == {"approved": True}
        assert [event.consumed_by_step for event in await h.events(instance)] == ["approval"]


async def test_a_worker_may_die_and_another_goes_on() -> None:
    begun, calls = asyncio.Event(), []

    @workflow("deadly")
    async def deadly(event, step):
        async def body() -> int:
            calls.append("body")
            begun.set()
            await asyncio.sleep(3600 if len(calls) == 1 else 0)
            return len(calls)

        return await step.do("body", body)

    async with Harness(App(workflows=[deadly])) as h:
        instance = await h.client.workflow(deadly).create()
        await begun.wait()
        await h.crash_worker()
        await h.start_worker()

        assert await instance.result(timeout="20 seconds") == 2


async def test_harnesses_share_a_server_and_keep_apart_by_namespace() -> None:
    app = App(workflows=[sleeper])
    async with VirtualServer() as server:
        for name in ("default", "one", "two"):
            async with Harness(app, address=server.address, namespace=name) as h:
                await h.start(sleeper, id="same")
                assert [one.id async for one in h.client.workflow(sleeper).list()] == ["same"]

        async with Harness(app, address=server.address, namespace="one") as again:
            instance = await again.client.workflow(sleeper).get("same")
            assert (await instance.status()).status == InstanceStatus.WAITING
            await again.advance("1 hour")
            assert (await instance.status()).status == InstanceStatus.COMPLETE


async def test_the_server_and_its_database_are_gone_afterwards() -> None:
    async with VirtualServer() as server:
        address, process = server.address, server._process

    assert process.returncode is not None
    async with Client(address, timeout="1 second") as client:
        with pytest.raises(CallFailed):
            await client.workflow("order").get("none")


async def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(ServerDidNotStart, match="unrecognized arguments: --nonsense"):
        async with VirtualServer("--nonsense"):
            pass


async def test_a_server_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ServerDidNotStart, match=r"pip install 'stepwell\[server\]'"):
        async with Harness(App()):
            pass


async def test_the_settings_of_a_real_server_are_kept_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "STEPWELL_POLICY", "nowhere:Policy")

    async with VirtualServer() as server:
        assert server.address


async def test_a_server_with_a_real_clock_is_not_joined(sqlite_url: str) -> None:
    async with start_in_process(sqlite_url) as served:
        with pytest.raises(RuntimeError, match="--virtual-clock"):
            async with Harness(App(), address=served.addresses.listen):
                pass


async def test_work_that_never_ends_is_told_when_patience_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverThere:
        async def AdvanceClock(self, request: object, timeout: float) -> AdvanceClockResponse:  # noqa: ASYNC109, N802
            return AdvanceClockResponse(arrived=False)

    async with Harness(App(), patience=0) as h:
        monkeypatch.setattr(h, "_clock", NeverThere())
        with pytest.raises(StillBusy):
            await h.advance("1 hour")
