"""Messages of one principal beside those of others: how many are in work at once, and in which order they begin."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from grpc import aio

from stepwell.v1 import dispatchers_pb2, namespaces_pb2, workers_pb2, workflows_pb2
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell_server.api.edge.access import Caller, Principal
from stepwell_server.api.edge.shares import MOMENT, Shares, Turn
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.policy import AllowAll
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import until
from tests.support.servers.servers import Served, StartServer

A_WHILE = MOMENT * 1.1


class ByName(AllowAll):
    """Callers are whoever they say they are."""

    async def authenticate(self, caller: Caller) -> Principal:
        """By the name that it sent."""
        return Principal(str(caller.metadata["authorization"]))


class Desk:
    """Shares whose clock the test moves, and how messages come and go there."""

    def __init__(self) -> None:
        self.now = self.worked = 1000.0
        self.shares = Shares(DEFAULT, lambda: self.now, lambda: self.worked)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def comes(self, *names: str) -> dict[str, Turn]:
        """Messages come, each with the principal before the dot in its name. Their turns."""
        turns = {name: Turn(self.shares, name.partition(".")[0]) for name in names}
        for name, turn in turns.items():
            self.tasks[name] = asyncio.create_task(self._take(name, turn))
        await self.settled()
        return turns

    async def _take(self, name: str, turn: Turn) -> None:
        await turn.take()
        self.begun.append(name)

    async def settled(self) -> list[str]:
        """Which messages have begun, once no more of them can."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.begun

    def pass_by(self, seconds: float, *, busy: bool) -> None:
        """Let time pass, with or without rest for the processor."""
        self.now += seconds
        self.worked += seconds if busy else 0.0

    async def flooded(self, count: int) -> dict[str, Turn]:
        """One message of another, and then so many of one that floods."""
        await self.comes("calm.0")
        turns = await self.comes(*(f"flood.{number}" for number in range(count)))
        self.begun.remove("calm.0")
        return turns


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    for task in desk.tasks.values():
        task.cancel()


async def test_a_principal_that_is_alone_has_all_of_its_messages_in_work(desk: Desk) -> None:
    desk.pass_by(10.0, busy=True)

    await desk.comes(*(f"one.{number}" for number in range(100)))

    assert len(desk.begun) == 100


async def test_while_another_sends_one_message_is_in_work_and_the_others_begin_in_their_order(desk: Desk) -> None:
    turns = await desk.flooded(4)
    assert desk.begun == ["flood.0"]

    for number in range(3):
        turns[f"flood.{number}"].drop()
        assert await desk.settled() == [f"flood.{one}" for one in range(number + 2)]


async def test_a_message_of_another_begins_at_once(desk: Desk) -> None:
    await desk.flooded(4)

    await desk.comes("other.0")

    assert desk.begun == ["flood.0", "other.0"]


async def test_when_the_other_is_gone_all_messages_begin(desk: Desk) -> None:
    turns = await desk.flooded(4)

    desk.pass_by(DEFAULT.shared_for, busy=True)
    turns["flood.0"].drop()

    assert len(await desk.settled()) == 4


async def test_while_the_processor_rests_twice_as_many_are_in_work_every_moment(desk: Desk) -> None:
    await desk.flooded(50)

    counts = []
    for _ in range(4):
        desk.pass_by(A_WHILE, busy=False)
        await desk.comes("calm.0")
        await desk.comes("flood.more")
        counts.append(len([name for name in desk.begun if name.startswith("flood")]))
    assert counts == [2, 4, 8, 16]


async def test_while_the_processor_has_no_rest_the_number_falls_again(desk: Desk) -> None:
    turns = await desk.flooded(50)
    for busy in (False, False, True, True, True):
        desk.pass_by(A_WHILE, busy=busy)
        await desk.comes("calm.0", "flood.more")
    assert desk.begun.count("flood.3") == 1

    for number in range(4):
        turns[f"flood.{number}"].drop()

    assert [name for name in await desk.settled() if name.startswith("flood")][4:] == ["flood.4"]


async def test_a_message_whose_caller_leaves_makes_way(desk: Desk) -> None:
    turns = await desk.flooded(4)

    desk.tasks["flood.1"].cancel()
    turns["flood.0"].drop()
    desk.tasks["flood.2"].cancel()  # its turn has just come
    await desk.settled()

    assert desk.begun == ["flood.0", "flood.3"]


async def test_a_message_that_only_waits_leaves_its_turn_to_others(desk: Desk) -> None:
    turns = await desk.flooded(4)

    with turns["flood.0"].rest():
        assert await desk.settled() == ["flood.0", "flood.1"]
    turns["flood.1"].drop()
    assert await desk.settled() == ["flood.0", "flood.1"]
    turns["flood.0"].drop()
    assert await desk.settled() == ["flood.0", "flood.1", "flood.2"]


# ---- through a server


class Busy(Shares):
    """Shares of a server that is shared and has no rest, whatever the time. Counts who asked."""

    asked: Counter[str] = Counter()

    def __init__(self, tuning: Tuning) -> None:
        super().__init__(tuning, lambda: 0.0)

    async def take(self, name: str) -> None:
        """Count."""
        self.asked[name] += 1
        await super().take(name)


class Slow:
    """Reads of instances that wait until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside: Counter[str] = Counter()
        self.may_go = asyncio.Event()
        read = Instances.get_many

        async def get_many(instances: Instances, keys: Any) -> Any:
            namespace = keys[0].namespace
            self.inside[namespace] += 1
            await self.may_go.wait()
            return await read(instances, keys)

        monkeypatch.setattr(Instances, "get_many", get_many)


async def settle(channel: aio.Channel, name: str) -> None:
    """Make a namespace for a principal, with a workflow in it."""
    me = (("authorization", name),)
    await NamespaceServiceStub(channel).CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=name), metadata=me)
    order = workers_pb2.Handler(kind=workers_pb2.HANDLER_KIND_WORKFLOW, name="order")
    hello = workers_pb2.Hello(
        worker_id=name, session_id=uuid4().hex, protocol_version=1, namespace=name, handlers=[order]
    )
    await WorkerServiceStub(channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello), metadata=me)


def watch(channel: aio.Channel, name: str) -> Any:
    """A stream of a principal that watches an instance of its namespace."""
    target = workflows_pb2.WatchTarget(namespace=name, workflow="order", instance_id="none")
    stream = WorkflowServiceStub(channel).WatchInstances(metadata=(("authorization", name),))
    return stream, workflows_pb2.WatchInstancesRequest(add=[target])


async def create(channel: aio.Channel, name: str) -> None:
    """Create an instance."""
    request = workflows_pb2.CreateInstanceRequest(namespace=name, workflow="order")
    await WorkflowServiceStub(channel).CreateInstance(request, metadata=(("authorization", name),), timeout=PATIENCE)


@pytest.fixture
async def server(start_server: StartServer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A busy server with a namespace for each of two principals."""
    monkeypatch.setattr("stepwell_server.app.Shares", Busy)
    server = await start_server(sqlite_url, policy="tests.api.test_shares:ByName")
    for name in ("calm", "flood"):
        await settle(server.channel, name)
    Busy.asked.clear()
    return server


async def test_a_stream_that_is_only_answered_holds_no_turn(server: Served) -> None:
    request = dispatchers_pb2.WakeStreamRequest(namespace="flood")
    wakes = DispatcherServiceStub(server.channel).WakeStream(request, metadata=(("authorization", "flood"),))
    await wakes.read()

    await create(server.channel, "calm")
    await create(server.channel, "flood")

    wakes.cancel()


async def test_streams_and_calls_of_a_flood_take_turns_while_others_are_served(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    streams = [watch(server.channel, "flood") for _ in range(5)]
    for stream, request in streams:
        await stream.write(request)
    calls = [asyncio.create_task(create(server.channel, "flood")) for _ in range(5)]
    await until(lambda: Busy.asked["flood"] == 10 and slow.inside["flood"])
    for _ in range(3):
        await create(server.channel, "calm")
    assert slow.inside["flood"] == 1

    slow.may_go.set()
    for stream, _ in streams:
        assert (await stream.read()).changes[0].refusal.error.code == 5
        stream.cancel()
    await asyncio.gather(*calls)
