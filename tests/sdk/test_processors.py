"""Processors: groups, and the server's DispatcherService as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest

from stepwell import (
    AlarmDispatcher,
    CallFailed,
    Client,
    PollingDispatcher,
    ProcessorGroup,
    ProcessorsFailed,
    ServerProcessor,
    StreamDispatcher,
)
from stepwell.v1 import dispatchers_pb2 as pb
from stepwell.v1.workers_pb2 import HANDLER_KIND_WORKFLOW
from tests.sdk.fake_processor import FakeProcessor, after
from tests.sdk.fake_server import FakeServer
from tests.sdk.stage import ManualClock
from tests.support.patience import PATIENCE

BROKEN = RuntimeError("no database")


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


# Groups.


async def test_a_group_makes_a_pass_of_each_and_wakes_for_the_earliest(clock: ManualClock) -> None:
    one, two, idle = FakeProcessor(clock, 9.0, count=2), FakeProcessor(clock, 4.0, count=3), FakeProcessor(clock)
    group = ProcessorGroup(one, two, idle)

    assert await group.process() == 6
    assert (await group.next_wake()).delay == 4.0
    assert (await ProcessorGroup(idle).next_wake()).delay is None


async def test_a_group_names_each_namespace_once(clock: ManualClock) -> None:
    names = ["default", "billing", "default"]

    assert ProcessorGroup(*(FakeProcessor(clock, namespace=name) for name in names)).namespace == "default, billing"


@pytest.mark.parametrize("error", [BROKEN, asyncio.CancelledError()])
async def test_one_that_fails_does_not_stop_the_others(clock: ManualClock, error: BaseException) -> None:
    broken = FakeProcessor(clock, pass_fails=error, look_fails=error, namespace="billing")
    others = [FakeProcessor(clock, 6.0), FakeProcessor(clock, 5.0)]
    group = ProcessorGroup(others[0], broken, others[1])

    with pytest.raises(ProcessorsFailed) as failed:
        await group.process()
    assert [len(other.passes) for other in others] == [1, 1]
    assert failed.value.processed == 2
    assert len(failed.value.exceptions) == 1

    with pytest.raises(ProcessorsFailed) as failed:
        await group.next_wake()
    assert failed.value.next_wake.delay == 5.0


async def test_an_error_says_whose_it_is(clock: ManualClock) -> None:
    with pytest.raises(ProcessorsFailed) as failed:
        await ProcessorGroup(FakeProcessor(clock, pass_fails=ValueError("x"), namespace="billing")).process()

    assert failed.value.exceptions[0].__notes__ == ["in the processor of namespace billing"]
    kept, _ = failed.value.split(ValueError)
    assert isinstance(kept, ProcessorsFailed)


async def test_one_that_always_fails_neither_slows_the_others_nor_is_forgotten(clock: ManualClock) -> None:
    broken = FakeProcessor(clock, pass_fails=BROKEN, look_fails=BROKEN)
    busy = FakeProcessor(clock, 0.0)
    async with AlarmDispatcher(ProcessorGroup(broken, busy), clock=clock, on_error=lambda _error: None):
        await after(clock, 1)
        assert len(busy.passes) >= 50

        busy.wakes_at = None
        await after(clock, 1)
        passes = len(broken.passes)
        await after(clock, 5.1)
        assert len(broken.passes) > passes


async def test_polls_of_a_group_go_on_for_those_that_answer(clock: ManualClock) -> None:
    broken, due = FakeProcessor(clock, count=0, look_fails=BROKEN), FakeProcessor(clock, 0.0, count=0)
    async with PollingDispatcher(ProcessorGroup(broken, due), clock=clock, on_error=lambda _error: None):
        await after(clock, 10.1)

    assert len(due.passes) == 3


# The server's.


async def test_the_next_wake_is_told_as_a_delay_by_the_servers_clock(server: FakeServer, client: Client) -> None:
    processor = ServerProcessor(client)
    assert (await processor.next_wake()).delay is None

    server.dispatchers.change(12.5)
    wake = await processor.next_wake()
    assert wake.delay == 12.5 and not wake.is_due

    server.dispatchers.change(-3, "order")
    wake = await processor.next_wake()
    assert wake.delay == 0 and wake.is_due
    [unserved] = wake.unserved
    assert (unserved.kind, unserved.name) == ("workflow", "order")


async def test_the_number_grows_with_each_replicas_own(server: FakeServer, client: Client) -> None:
    processor, fake = ServerProcessor(client), server.dispatchers

    async def told(replica_id: str, number: int) -> int:
        fake.replica_id, fake.number = replica_id, number
        return (await processor.next_wake()).number

    first = await told("r1", 7)
    assert await told("r1", 7) == first
    assert (grown := await told("r1", 8)) > first
    assert (other := await told("r2", 3)) > grown
    assert await told("r1", 8) == await told("r2", 3) == await told("r1", 6) == other
    assert await told("r2", 4) > other


async def test_a_pass_counts_what_it_handed_out_or_with_a_wait_what_ended(server: FakeServer, client: Client) -> None:
    server.dispatchers.handed_out, server.dispatchers.processed = 5, 3

    assert await ServerProcessor(client, max_tasks=20, max_steps=4).process() == 5
    assert await ServerProcessor(client, wait="2 seconds").process() == 3

    at_once, waiting = server.dispatchers.requests
    assert (at_once.max_tasks, at_once.max_steps, at_once.wait.ToTimedelta()) == (20, 4, timedelta(0))
    assert waiting.wait.ToTimedelta() == timedelta(seconds=2)


async def test_every_call_carries_namespace_and_filter(server: FakeServer) -> None:
    async with Client(server.address, namespace="billing") as client:
        processor = ServerProcessor(client, kinds=["workflow"], names=["order", "refund"])
        assert processor.namespace == "billing"
        await processor.process()
        await processor.next_wake()
        async with StreamDispatcher(processor):
            await until(lambda: len(server.dispatchers.requests) == 3)

    for request in server.dispatchers.requests:
        assert request.namespace == "billing"
        assert request.filter == pb.WakeFilter(kinds=[HANDLER_KIND_WORKFLOW], names=["order", "refund"])


async def test_an_unknown_kind_is_refused_where_it_is_written(client: Client) -> None:
    with pytest.raises(ValueError, match="no kind of handler 'cron': workflow"):
        ServerProcessor(client, kinds=["cron"])


async def test_a_refusal_is_a_failed_call(server: FakeServer, client: Client) -> None:
    server.dispatchers.refuses = grpc.StatusCode.PERMISSION_DENIED
    server.dispatchers.refuses_streams = grpc.StatusCode.RESOURCE_EXHAUSTED
    processor = ServerProcessor(client)

    for call in (processor.process, processor.next_wake):
        with pytest.raises(CallFailed) as failed:
            await call()
        assert failed.value.code is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(CallFailed) as failed:
        await anext(processor.follow())
    assert failed.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.client_tuning(silence=0.1)
async def test_a_stream_that_falls_silent_is_given_up(client: Client) -> None:
    stream = ServerProcessor(client).follow()
    await anext(stream)

    with pytest.raises(CallFailed, match="silent"):
        await anext(stream)


async def test_a_stream_ends_when_the_server_goes_away(server: FakeServer, client: Client) -> None:
    server.dispatchers.is_draining = True
    server.dispatchers.change(7)

    assert [wake.delay async for wake in ServerProcessor(client).follow()] == [7]


async def test_a_sidecar_follows_the_stream_and_has_due_work_handed_out(server: FakeServer, client: Client) -> None:
    fake = server.dispatchers
    fake.handed_out = 1
    async with StreamDispatcher(ServerProcessor(client)):
        await until(lambda: fake.streams)
        assert fake.passes() == 0

        fake.change(0)
        await until(lambda: fake.passes() == 1)

        fake.cut()
        await until(lambda: not fake.streams)
        fake.wake_in, fake.number = 0, 50
        await until(lambda: fake.passes() == 2)
