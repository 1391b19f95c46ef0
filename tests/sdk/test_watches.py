"""The stream of a client that waits for results: silence, and who comes while a change is on its way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from stepwell import CallFailed, Client
from stepwell.client.watches import Watches
from stepwell.v1 import workflows_pb2 as pb
from tests.sdk.fake_server import FakeServer
from tests.sdk.stage import settle


def change(revision: int, status: Any = pb.INSTANCE_STATUS_RUNNING) -> pb.WatchInstancesResponse:
    instance = pb.Instance(workflow="order", instance_id="x", status=status, revision=revision)
    return pb.WatchInstancesResponse(changes=[pb.InstanceChange(instance=instance)])


class SlowCall:
    """A stream whose writes take as long as the gate is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written: list[pb.WatchInstancesRequest] = []
        self.incoming: asyncio.Queue[pb.WatchInstancesResponse] = asyncio.Queue()

    async def write(self, request: pb.WatchInstancesRequest) -> None:
        self.written.append(request)
        await self.gate.wait()

    async def read(self) -> pb.WatchInstancesResponse:
        return await self.incoming.get()

    def cancel(self) -> None: ...


@pytest.mark.client_tuning(silence=0.1)
async def test_a_stream_that_falls_silent_is_replaced_and_goes_on_from_what_was_seen(
    server: FakeServer, client: Client
) -> None:
    order = await client.workflow("order").create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    server.workflows.watchers[-1].put_nowait(change(4))

    await server.workflows.until_watched(2)
    assert server.workflows.watches[-1].add[0].known_revision == 4
    while not wait.done():  # on a busy machine the new stream falls silent, too
        server.workflows.watchers[-1].put_nowait(change(5, pb.INSTANCE_STATUS_COMPLETE))
        await asyncio.wait([wait], timeout=0.05)
    await wait


async def test_who_waits_takes_no_refusal_from_a_proxy_once_a_server_has_answered(
    server: FakeServer, client: Client
) -> None:
    order = await client.workflow("order").create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    watcher = server.workflows.watchers[-1]
    watcher.put_nowait(change(4))

    server.workflows.refuses_watchers = grpc.StatusCode.UNIMPLEMENTED
    watcher.put_nowait(None)
    await server.workflows.refused_watchers.get()
    server.workflows.refuses_watchers = None
    await server.workflows.until_watched(2)
    server.workflows.watchers[-1].put_nowait(change(5, pb.INSTANCE_STATUS_COMPLETE))

    await wait


async def test_who_was_never_answered_is_told_what_the_proxy_says(server: FakeServer, client: Client) -> None:
    order = await client.workflow("order").create(id="x")
    server.workflows.refuses_watchers = grpc.StatusCode.UNIMPLEMENTED

    with pytest.raises(CallFailed, match="UNIMPLEMENTED"):
        await asyncio.wait_for(order.result(), 5)


async def test_who_comes_while_a_change_is_on_its_way_is_sent_the_present_state_with_its_steps() -> None:
    call = SlowCall()
    stub: Any = SimpleNamespace(WatchInstances=lambda: call)
    followed = Watches(stub, "default", "")
    with followed.follow("order", "x"):
        await settle()
        with followed.follow("order", "x", steps=True):
            call.incoming.put_nowait(change(4))
            await settle()
            call.gate.set()
            await settle()
    await followed.close(RuntimeError("closed"))

    _, second = call.written
    assert [(target.known_revision, target.include_steps) for target in second.add] == [(0, True)]


async def test_who_waits_for_what_it_created_is_sent_what_has_changed_since(server: FakeServer, client: Client) -> None:
    server.workflows.born_with = 1
    order = await client.workflow("order").create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    assert server.workflows.watches[-1].add[0].known_revision == 1

    server.workflows.watchers[-1].put_nowait(change(5, pb.INSTANCE_STATUS_COMPLETE))
    await wait


async def test_who_knows_more_than_another_that_waits_is_sent_the_present_state_for_both() -> None:
    call = SlowCall()
    stub: Any = SimpleNamespace(WatchInstances=lambda: call)
    followed = Watches(stub, "default", "")
    with followed.follow("order", "x"), followed.follow("order", "x", known_revision=4):
        call.gate.set()
        await settle()
    await followed.close(RuntimeError("closed"))

    assert [target.known_revision for target in call.written[0].add] == [0]


async def test_what_has_ended_when_it_is_created_again_is_asked_for_its_output(
    server: FakeServer, client: Client
) -> None:
    """The answer to a repeated create brings how it stands, without what it returned."""
    server.workflows.born_with = 7
    server.workflows.born_as = pb.INSTANCE_STATUS_COMPLETE
    order = await client.workflow("order").create(id="x")
    wait = asyncio.create_task(order.result())
    await server.workflows.until_watched(1)
    assert server.workflows.watches[-1].add[0].known_revision == 0

    server.workflows.watchers[-1].put_nowait(change(7, pb.INSTANCE_STATUS_COMPLETE))
    await wait
