"""The worker on the wire: registration, messages, reconnects and leaving."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from stepwell import App, CallFailed, Client, Worker, WorkflowEntrypoint, workflow
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.worker.connection import in_messages
from stepwell.worker.held_work import Capacity
from tests.sdk.fake_server import FakeServer
from tests.sdk.stage import ManualClock, in_a_word, settle


@workflow("add")
async def add(event: Any, step: Any) -> int:
    """Add things up."""
    first: int = await step.do("first", lambda: 1)
    return first + await step.do("second", lambda: 2)


@workflow("where")
async def where(event: Any, step: Any) -> list[str]:
    async def on_the_loop() -> str:
        return threading.current_thread().name

    async_name = await step.do("async", on_the_loop)
    return [async_name, await step.do("sync", lambda: threading.current_thread().name)]


class Parent(WorkflowEntrypoint[Any, Any]):
    name = "parent"

    async def run(self, event: Any, step: Any) -> Any:
        async def start() -> str:
            return (await self.workflow("child").create(id=f"child-{event.instance_id}")).id

        return await step.do("start child", start)


@pytest.fixture
def app() -> App:
    return App(workflows=[add, where, Parent])


async def test_a_worker_is_ready_when_it_is_welcome(server: FakeServer, client: Client, app: App) -> None:
    async with Worker(client, app, worker_id="w-1", max_tasks=7):
        hello = (await server.workers.streams.get()).hello

    assert (hello.worker_id, hello.protocol_version, hello.namespace) == ("w-1", 1, "default")
    assert len(hello.session_id) == 32 and int(hello.session_id, 16)
    assert [handler.name for handler in hello.handlers] == ["add", "where", "parent"]
    assert hello.handlers[0].workflow.description == "Add things up."


async def test_it_grants_credit_executes_and_says_goodbye(server: FakeServer, client: Client, app: App) -> None:
    async with Worker(client, app, max_tasks=7):
        stream = await server.workers.streams.get()
        assert (await stream.until("credit")).credit.tasks == 7
        stream.give("add")
        finish = await stream.until("finish")
        assert finish.finish.output.json == "3"
    await stream.until("goodbye")

    frames = [in_a_word(frame) for frame in stream.frames if frame.task_id]
    assert frames == ["task_ack", "step_done:first +second", "step_done:second", "finish"]


async def test_a_worker_takes_500_tasks_unless_it_is_told_otherwise(
    server: FakeServer, client: Client, app: App
) -> None:
    async with Worker(client, app):
        stream = await server.workers.streams.get()
        assert (await stream.until("credit")).credit.tasks == 500
    assert Capacity().max_tasks == 500


async def test_a_worker_can_be_left_when_it_has_been_idle_for_a_while(client: Client, app: App) -> None:
    clock = ManualClock()
    async with Worker(client, app, clock=clock) as worker:
        leaving = asyncio.create_task(worker.ended(idle="5 seconds"))
        await settle()
        clock.advance(4.9)
        await settle()
        assert not leaving.done()

        clock.advance(0.2)
        await asyncio.wait_for(leaving, 5)


async def test_a_worker_that_is_waited_for_until_it_is_idle_says_why_it_was_refused(
    server: FakeServer, client: Client, app: App
) -> None:
    with pytest.raises(CallFailed, match="NAMESPACE_NOT_FOUND"):
        async with Worker(client, app, connect_timeout="5 seconds") as worker:
            stream = await server.workers.streams.get()
            server.workers.refuses, server.workers.reason = grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND"
            stream.cut()
            await worker.ended(idle="1 hour")


async def test_an_arrival_that_nothing_follows_is_said_all_the_same(server: FakeServer, client: Client) -> None:
    @workflow("stuck")
    async def stuck(event: Any, step: Any) -> None:
        await step.do("work", asyncio.Event().wait)

    async with Worker(client, workflows=[stuck], grace=0):
        stream = await server.workers.streams.get()
        stream.give("stuck")
        await stream.until("task_ack")


async def test_async_bodies_run_on_the_loop_and_others_in_threads(server: FakeServer, client: Client, app: App) -> None:
    async with Worker(client, app):
        stream = await server.workers.streams.get()
        stream.give("where")
        output = (await stream.until("finish")).finish.output.json

    assert output.startswith(f'["{threading.current_thread().name}","stepwell-step')


async def test_a_workflow_starts_another_through_the_workers_client(
    server: FakeServer, client: Client, app: App
) -> None:
    async with Worker(client, app):
        stream = await server.workers.streams.get()
        stream.give("parent")
        await stream.until("finish")

    assert [item.instance_id for item in server.workflows.creates[0].items] == ["child-parent-1"]


async def test_a_lost_stream_is_replaced_and_nothing_is_lost(
    server: FakeServer, client: Client, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stepwell.worker")
    server.workers.acks = False
    async with Worker(client, app):
        first = await server.workers.streams.get()
        first.give("add")
        await first.until("step_done")
        server.workers.acks = True
        first.cut()

        second = await server.workers.streams.get()
        assert second.hello.session_id == first.hello.session_id
        assert [(held.task_id, held.fence) for held in second.hello.held] == [(1, 1)]
        assert (await second.until("finish")).finish.output.json == "3"
    assert [frame.number for frame in second.frames if frame.task_id] == [1, 2, 3]
    assert [line.split()[0] for line in caplog.messages if line.startswith("stream_")] == [
        "stream_lost",
        "stream_restored",
    ]


async def test_a_server_that_drains_is_left_at_once_for_another_stream(
    server: FakeServer, client: Client, app: App
) -> None:
    async with Worker(client, app):
        first = await server.workers.streams.get()
        first.say(pb.ServerFrame(drain=pb.Drain()))
        second = await server.workers.streams.get()

        second.give("add")
        await second.until("finish")


async def test_a_worker_that_is_not_wanted_is_told_why(server: FakeServer, client: Client, app: App) -> None:
    server.workers.refuses = grpc.StatusCode.NOT_FOUND

    with pytest.raises(CallFailed, match="refused"):
        async with Worker(client, app):
            pass
    with pytest.raises(CallFailed):
        await Worker(client, app).run()


async def test_a_server_that_is_not_there_is_waited_for_only_so_long(app: App) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises((CallFailed, TimeoutError)):
            async with Worker(client, app, connect_timeout="500 ms"):
                pass


async def test_heartbeats_come_as_often_as_the_server_wants_from_the_first_on(
    server: FakeServer, client: Client
) -> None:
    server.workers.intervals = {"lease": Duration(seconds=3), "heartbeat_interval": Duration(seconds=1)}
    clock = ManualClock()

    @workflow("stuck")
    async def stuck(event: Any, step: Any) -> None:
        await step.do("work", asyncio.Event().wait)

    async with Worker(client, workflows=[stuck], clock=clock, grace=0):
        stream = await server.workers.streams.get()
        stream.give("stuck")
        await stream.until("task_ack")
        for _ in range(4):
            clock.advance(0.25)
        beat = (await stream.until("heartbeat")).heartbeat

    assert [(held.task_id, held.fence) for held in beat.held] == [(1, 1)]


async def test_a_server_that_falls_silent_is_left_for_another_stream(
    server: FakeServer, client: Client, app: App
) -> None:
    server.workers.intervals = {"lease": Duration(seconds=3), "heartbeat_interval": Duration(seconds=1)}
    clock = ManualClock()
    async with Worker(client, app, clock=clock):
        first = await server.workers.streams.get()
        for _ in range(13):
            clock.advance(0.25)
        second = await server.workers.streams.get()

    assert second.hello.session_id == first.hello.session_id


@pytest.mark.parametrize("first", ["message", "tick"])
async def test_a_worker_that_was_frozen_takes_nothing_that_was_sent_to_it_meanwhile(
    server: FakeServer, client: Client, app: App, first: str
) -> None:
    """Its tasks are others' by now: what it would begin would be executed twice, and counted by nobody."""
    clock = ManualClock()
    async with Worker(client, app, clock=clock):
        before = await server.workers.streams.get()
        clock.stand_still(6)
        if first == "tick":
            clock.advance(0)
        before.give("add")
        after = await server.workers.streams.get()
        after.give("add", task_id=2)
        await after.until("finish")

    assert after.hello.session_id == before.hello.session_id
    assert not [frame for frame in before.frames if frame.task_id == 1]


async def test_run_works_until_it_is_cancelled(server: FakeServer, client: Client, app: App) -> None:
    running = asyncio.create_task(Worker(client, app).run())
    stream = await server.workers.streams.get()
    stream.give("add")
    await stream.until("finish")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stream.until("goodbye")


async def test_leaving_lets_a_body_end_and_waits_for_its_ack(server: FakeServer, client: Client) -> None:
    gate, has_begun = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        has_begun.set()
        await gate.wait()

    @workflow("slow")
    async def slow(event: Any, step: Any) -> None:
        await step.do("work", work)

    async with Worker(client, workflows=[slow]):
        stream = await server.workers.streams.get()
        stream.give("slow")
        await has_begun.wait()
        asyncio.get_running_loop().call_soon(gate.set)

    kinds = [in_a_word(frame) for frame in stream.frames if not frame.HasField("credit")]
    assert kinds == ["task_ack", "step_done:work", "finish", "goodbye"]


async def test_leaving_names_the_bodies_that_it_interrupts(server: FakeServer, client: Client) -> None:
    """They count as an attempt; of what is not named, the server may take it that it never began."""
    has_begun = asyncio.Event()

    async def work() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    @workflow("stuck")
    async def stuck(event: Any, step: Any) -> None:
        await step.do("work", work)

    async with Worker(client, workflows=[stuck], grace=0):
        stream = await server.workers.streams.get()
        stream.give("stuck")
        await has_begun.wait()
    await stream.until("goodbye")

    kinds = [in_a_word(frame) for frame in stream.frames if not frame.HasField("credit")]
    assert kinds == ["task_ack", "begin_steps =work", "goodbye"]


async def test_a_worker_works_once(client: Client, server: FakeServer, app: App) -> None:
    worker = Worker(client, app)
    async with worker:
        pass

    with pytest.raises(RuntimeError):
        async with worker:
            pass


def test_a_message_never_gets_too_large() -> None:
    big = pb.WorkerFrame(step_done=pb.StepDone(result=Payload(json="x" * 1_000_000)))

    assert [len(message) for message in in_messages([big] * 7)] == [3, 3, 1]
    assert list(in_messages([])) == []


def test_frames_are_sent_in_messages_with_as_many_as_the_server_takes() -> None:
    small = pb.WorkerFrame(task_ack=pb.TaskAck())
    opening = pb.WorkerFrame(begin_steps=pb.BeginSteps(), opens=[pb.OpenStep()] * 600)

    assert [len(message) for message in in_messages([small] * 2500)] == [1000, 1000, 500]
    assert [len(message) for message in in_messages([opening] * 3)] == [1, 1, 1]
