"""The worker's stream: when it is given up, when it is tried again, and when that is pointless."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from stepwell import App, CallFailed, Client, Worker, workflow
from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.connection import Connection
from stepwell.worker.dialogue import Dialogue
from stepwell.worker.held_work import HeldWork
from tests.sdk.fake_server import FakeServer, WorkerStream
from tests.sdk.stage import InlinePool, ManualClock

INTERVALS = {"lease": Duration(seconds=3), "heartbeat_interval": Duration(seconds=1)}
OF_A_PROXY = [
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
]


class Body:
    """A step's body that never ends by itself."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_cut_short = asyncio.Event()

    async def __call__(self) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cut_short.set()


@pytest.fixture
def body() -> Body:
    return Body()


@pytest.fixture
def app(body: Body) -> App:
    @workflow("stuck")
    async def stuck(event: Any, step: Any) -> None:
        await step.do("work", body)

    return App([stuck])


async def next_stream(server: FakeServer) -> WorkerStream:
    return await asyncio.wait_for(server.workers.streams.get(), 5)


async def given(stream: WorkerStream, task_id: int) -> None:
    stream.frames.clear()
    stream.give("stuck", task_id)
    await stream.until("task_ack")


async def test_a_worker_that_has_given_up_everything_says_so_at_once(
    server: FakeServer, client: Client, app: App
) -> None:
    """Else the server would believe it to be held, and hand out as many tasks as if there were room for them."""
    server.workers.intervals = INTERVALS
    server.workers.acks = False
    clock = ManualClock()
    async with Worker(client, app, clock=clock, grace=0):
        before = await next_stream(server)
        await given(before, 1)
        for _ in range(11):  # heartbeats are not answered, as by a server whose database is away
            clock.advance(0.25)
        after = await next_stream(server)

    assert list(after.hello.held) == []


async def test_a_hello_renews_what_its_welcome_lists(server: FakeServer, client: Client, app: App) -> None:
    server.workers.intervals = INTERVALS
    clock = ManualClock()
    async with Worker(client, app, clock=clock, grace=0):
        before = await next_stream(server)
        await given(before, 1)
        for _ in range(8):
            clock.advance(0.25)
        before.cut()
        after = await next_stream(server)
        await after.until("credit")
        for _ in range(4):
            clock.advance(0.25)
        beat = await asyncio.wait_for(after.until("heartbeat"), 5)

    assert [(held.task_id, held.fence) for held in beat.heartbeat.held] == [(1, 1)]


@pytest.mark.parametrize("code", OF_A_PROXY)
async def test_a_worker_that_was_welcome_takes_no_refusal_from_a_proxy(
    server: FakeServer, client: Client, app: App, code: grpc.StatusCode
) -> None:
    async with Worker(client, app):
        before = await next_stream(server)
        server.workers.refuses = code
        before.cut()
        await server.workers.refused.get()
        server.workers.refuses = None
        after = await next_stream(server)

    assert after.hello.session_id == before.hello.session_id


async def refused_at_work(server: FakeServer, body: Body) -> None:
    """Let a worker begin a body, and then be told by the server that it is not wanted."""
    stream = await next_stream(server)
    stream.give("stuck")
    await body.has_begun.wait()
    server.workers.refuses, server.workers.reason = grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND"
    stream.cut()


async def test_a_worker_that_is_refused_for_good_stops_what_it_executes_and_leaving_it_says_why(
    server: FakeServer, client: Client, app: App, body: Body
) -> None:
    with pytest.raises(CallFailed, match="NAMESPACE_NOT_FOUND"):
        async with Worker(client, app):
            await refused_at_work(server, body)
            await asyncio.wait_for(body.is_cut_short.wait(), 5)


async def test_what_the_block_raises_itself_goes_first(
    server: FakeServer, client: Client, app: App, body: Body
) -> None:
    with pytest.raises(LookupError, match="of the block"):
        async with Worker(client, app):
            await refused_at_work(server, body)
            await asyncio.wait_for(body.is_cut_short.wait(), 5)
            raise LookupError("of the block")


async def test_a_stream_that_is_given_up_is_no_reason_to_go_on_when_cancelled(client: Client, app: App) -> None:
    clock = ManualClock()
    held = HeldWork(app, client, InlinePool(), clock)
    connection = Connection(client, Dialogue(held), lambda: pb.Hello(session_id="0" * 32))
    serving = asyncio.create_task(connection.serve())
    await connection.is_welcome.wait()

    clock.stand_still(6)
    clock.advance(0)  # gives the stream up
    serving.cancel()

    done, _ = await asyncio.wait({serving}, timeout=5)
    assert done and serving.cancelled()


async def test_a_drained_stream_is_closed_after_what_is_ready_and_another_is_opened(
    server: FakeServer, client: Client, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("stepwell.worker.connection.Reconnects.next_pause", lambda _self: pauses.append(0) or 0)
    async with Worker(client, app, grace=0):
        before = await next_stream(server)
        task = pb.Task(handler=pb.HandlerRef(kind=pb.HANDLER_KIND_WORKFLOW, name="stuck"), workflow=pb.WorkflowInput())
        before.say(
            pb.ServerFrame(task_id=1, fence=1, task=task),
            pb.ServerFrame(drain=pb.Drain()),  # which is read before the arrival of the task can be acknowledged
        )

        after = await next_stream(server)
        await asyncio.wait_for(before.until("task_ack"), 5)
        assert not any(frame.HasField("goodbye") for frame in before.frames)
        assert ([held.task_id for held in after.hello.held], pauses) == ([1], [0])


@pytest.mark.client_tuning(drain=0.0)
async def test_a_server_that_drains_and_never_ends_the_stream_is_left(
    server: FakeServer, client: Client, app: App
) -> None:
    server.workers.ends_streams = False
    async with Worker(client, app, grace=0):
        before = await next_stream(server)
        before.say(pb.ServerFrame(drain=pb.Drain()))

        after = await next_stream(server)
        server.workers.ends_streams = True

    assert after.hello.session_id == before.hello.session_id
