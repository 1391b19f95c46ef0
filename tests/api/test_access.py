"""Who may call what: the table, the seam, the limits on callers."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from stepwell.v1 import namespaces_pb2, server_pb2
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell_server.api.access import Caller, Category, PolicyNotFound, Principal, load_policy
from stepwell_server.domain.errors import Unauthenticated
from tests.support.errors import refusal
from tests.support.servers import Served, StartServer

HERE = "tests.api.test_access"


class ReadersOnly:
    """A policy for the tests: whoever says a name may read."""

    async def authenticate(self, caller: Caller) -> Principal:
        name = caller.metadata.get("authorization")
        if not isinstance(name, str):
            raise Unauthenticated("say who you are")
        return Principal(name)

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return category is Category.READ


@pytest.fixture
async def guarded(start_server: StartServer, sqlite_url: str) -> Served:
    return await start_server(sqlite_url, policy=f"{HERE}:ReadersOnly", limits={"streams_per_principal": 3})


async def test_a_caller_without_a_name_is_turned_away(guarded: Served) -> None:
    error = await refusal(ServerServiceStub(guarded.channel).GetServerInfo(server_pb2.GetServerInfoRequest()))

    assert (error.code.name, error.reason, error.metadata) == ("UNAUTHENTICATED", "UNAUTHENTICATED", {})


async def test_a_known_caller_may_do_what_the_policy_allows_and_no_more(guarded: Served) -> None:
    me = (("authorization", "me"),)
    stub = NamespaceServiceStub(guarded.channel)

    assert await stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(), metadata=me)
    error = await refusal(stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name="new"), metadata=me))

    assert (error.code.name, error.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert error.metadata == {"category": "admin"}


async def test_health_is_open_to_everybody(guarded: Served) -> None:
    assert await HealthStub(guarded.channel).Check(health_pb2.HealthCheckRequest(service="readiness"))


async def test_reflection_is_behind_the_policy(guarded: Served) -> None:
    method = guarded.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")

    assert (await refusal(method(iter([b""])).read())).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_principal_has_so_many_streams_and_gets_places_back(guarded: Served) -> None:
    def watch() -> object:
        return HealthStub(guarded.channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))

    streams = [watch() for _ in range(3)]
    for stream in streams:
        await stream.read()  # type: ignore[attr-defined]
    error = await refusal(watch().read())  # type: ignore[attr-defined]
    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "STREAM_LIMIT")

    streams[0].cancel()  # type: ignore[attr-defined]
    async with asyncio.timeout(10):
        while True:
            again = watch()
            try:
                await again.read()  # type: ignore[attr-defined]
            except grpc.aio.AioRpcError:
                continue
            break
    for stream in [*streams, again]:
        stream.cancel()  # type: ignore[attr-defined]


async def test_too_many_calls_at_once_are_told_when_to_come_back(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, unary_calls=2)
    stub = ServerServiceStub(server.channel)
    inside, leave = asyncio.Semaphore(0), asyncio.Event()
    run_tx = server.app.db.run_tx

    async def held(*args: object, **kw: object) -> object:
        inside.release()
        await leave.wait()
        return await run_tx(*args, **kw)  # type: ignore[arg-type]

    server.app.db.run_tx = held  # type: ignore[method-assign,assignment]
    calls = [stub.GetServerInfo(server_pb2.GetServerInfoRequest()) for _ in range(2)]
    for _ in calls:
        await inside.acquire()

    error = await refusal(stub.GetServerInfo(server_pb2.GetServerInfoRequest()))
    healthy = await HealthStub(server.channel).Check(health_pb2.HealthCheckRequest(service="readiness"))
    leave.set()

    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "SERVER_BUSY")
    assert healthy.status == health_pb2.HealthCheckResponse.SERVING
    assert all(await asyncio.gather(*calls))


@pytest.mark.parametrize("name", ["no.such.module:Policy", f"{HERE}:NoSuchPolicy", "nonsense"])
def test_a_policy_that_cannot_be_found_is_told_by_its_name(name: str) -> None:
    with pytest.raises(PolicyNotFound, match=name):
        load_policy(name)
