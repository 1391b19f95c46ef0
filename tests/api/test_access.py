"""Who may call what: the table, the seam, the limits on callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2

from stepwell.v1 import dispatchers_pb2, namespaces_pb2, server_pb2, workers_pb2
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.api.edge.access import Caller, Category, PolicyNotFound, Principal, load_policy
from stepwell_server.domain.values.errors import Unauthenticated
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows, status_name
from tests.support.calls.wakes import Sidecar
from tests.support.pages import blocks
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import until
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.workers import UnaryWorker

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


class WritersOnly(ReadersOnly):
    """Nobody may read."""

    async def authenticate(self, caller: Caller) -> Principal:
        return Principal("somebody")

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return category is not Category.READ


class OnlyTeamA(WritersOnly):
    """Everybody may do everything in one namespace."""

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return namespace == "team-a"


class Silent(ReadersOnly):
    """It never says who a caller is."""

    async def authenticate(self, caller: Caller) -> Principal:
        await asyncio.Event().wait()
        return Principal("nobody")


@pytest.fixture
async def guarded(start_server: StartServer, sqlite_url: str) -> Served:
    return await start_server(sqlite_url, policy=f"{HERE}:ReadersOnly", limits={"streams_per_principal": 3})


async def test_a_caller_without_a_name_is_turned_away(guarded: Served) -> None:
    error = await refusal(ServerServiceStub(guarded.channel).GetServerInfo(server_pb2.GetServerInfoRequest()))

    assert (error.code.name, error.reason, error.metadata) == ("UNAUTHENTICATED", "UNAUTHENTICATED", {})


@pytest.mark.tuning(policy_deadline=0.05)
async def test_a_policy_that_never_answers_holds_no_call(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:Silent")
    watch = DispatcherServiceStub(server.channel).WakeStream(dispatchers_pb2.WakeStreamRequest())
    told = [
        await refusal(ServerServiceStub(server.channel).GetServerInfo(server_pb2.GetServerInfoRequest())),
        await refusal(watch.read()),
    ]

    assert {(one.code.name, one.reason, one.metadata["limit"]) for one in told} == {
        ("DEADLINE_EXCEEDED", "SERVER_DEADLINE", "0.05")
    }
    assert told[0].message == "the policy did not say within 0.05 seconds who the caller is"


async def test_a_caller_that_leaves_waits_for_no_policy(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:Silent")
    in_flight = server.app.metrics.in_flight.labels("unary")._value

    call = ServerServiceStub(server.channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)
    await until(lambda: in_flight.get() == 1)
    call.cancel()

    await until(lambda: in_flight.get() == 0)


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

    assert (await refusal(method().read())).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_needs_permission_too(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:WritersOnly")
    method = server.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")

    assert (await refusal(method().read())).code is grpc.StatusCode.PERMISSION_DENIED


async def test_the_policy_is_asked_about_the_namespace_of_the_request(
    start_server: StartServer, sqlite_url: str
) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:OnlyTeamA")
    stubs = (WorkerServiceStub(server.channel), DispatcherServiceStub(server.channel))

    def asked(namespace: str) -> list[object]:
        hello = workers_pb2.Hello(namespace=namespace)
        return [
            stubs[0].RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello)),
            stubs[0].ClaimTasks(workers_pb2.ClaimTasksRequest(namespace=namespace)),
            stubs[1].GetNextWake(dispatchers_pb2.GetNextWakeRequest(namespace=namespace)),
        ]

    allowed = [(await refusal(call)).reason for call in asked("team-a")]  # type: ignore[arg-type]
    denied = [(await refusal(call)).reason for call in asked("team-b")]  # type: ignore[arg-type]

    assert allowed == ["INVALID_SESSION_ID", "INVALID_SESSION_ID", "NAMESPACE_NOT_FOUND"]  # each by its own rules
    assert denied == ["PERMISSION_DENIED"] * 3


async def test_a_principal_has_so_many_streams_and_gets_places_back(guarded: Served) -> None:
    method = guarded.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    me = (("authorization", "me"),)
    ask = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()

    async def opened() -> Any:
        stream = method(metadata=me)
        await stream.write(ask)
        await stream.read()
        return stream

    streams = [await opened() for _ in range(3)]
    error = await refusal(opened())
    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "STREAM_LIMIT")

    streams[0].cancel()
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(grpc.aio.AioRpcError):
                streams.append(await opened())
                break
    for stream in streams:
        stream.cancel()


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


async def test_calls_that_wait_keep_no_others_out(start_server: StartServer, database_url: str, hire_at: Hire) -> None:
    server = await start_server(database_url, unary_calls=2, waiting_calls=5)
    flows, caller = Flows(server.channel), UnaryWorker(server.channel, ("bill",))
    await hire_at(server, credit=0)
    await caller.register()
    await flows.create("one")
    calls: list[Coroutine[Any, Any, Any]] = [flows.wait("one", 30) for _ in range(3)]
    calls += [flows.create("two", wait=30), caller.claim(wait=30)]
    waiting = []
    for call in calls:
        waiting.append(asyncio.create_task(call))
        await until_waiting(server, len(waiting))

    error = await refusal(flows.wait("one", 30))
    await flows.manage("Terminate", "one")

    assert (error.code.name, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "SERVER_BUSY", {"limit": "5"})
    assert [(await one).instance_id for one in waiting[:3]] == ["one"] * 3
    await until_waiting(server, 2)
    for one in waiting:
        one.cancel()


async def test_calls_that_wait_are_answered_when_the_server_goes_away(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    server = await start_server(postgres_url, dispatch="external")
    flows, caller = Flows(server.channel), UnaryWorker(server.channel, ("bill",))
    worker = await hire_at(server, credit=1)
    await caller.register()
    await flows.create("one")
    calls: list[Awaitable[Any]] = [Sidecar(server.channel).process(wait=30)]
    calls += [flows.wait("one", 30), flows.create("two", wait=30), caller.claim(wait=20)]
    answers = asyncio.gather(*calls)
    await worker.take()
    await until_waiting(server, 4)

    draining = asyncio.create_task(server.app.drain(0))
    async with asyncio.timeout(PATIENCE):
        processed, waited, created, claimed = await answers
    await worker.close_side()
    await draining

    assert (processed.handed_out, processed.processed) == (1, 0)
    assert (status_name(waited.status), status_name(created.status), claimed) == ("RUNNING", "QUEUED", [])


@pytest.mark.tuning(drain_wait=0.05)
async def test_a_wait_that_begins_while_the_server_goes_away_is_a_short_one(
    server: Served, hire: Hire, flows: Flows
) -> None:
    await hire(credit=0)
    await flows.create("one")
    server.app.parts.replica.kinds.drain()

    async with asyncio.timeout(PATIENCE):
        assert status_name((await flows.wait("one", 60)).status) == "QUEUED"


async def until_waiting(server: Served, count: int) -> None:
    """Return once so many calls wait."""
    async with asyncio.timeout(PATIENCE):
        while server.app._admission._waiting.total != count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["no.such.module:Policy", f"{HERE}:NoSuchPolicy", "nonsense"])
def test_a_policy_that_cannot_be_found_is_told_by_its_name(name: str) -> None:
    with pytest.raises(PolicyNotFound, match=name):
        load_policy(name)


async def test_the_policy_of_the_docs_lets_its_one_token_in_and_compares_it_in_constant_time() -> None:
    (sample,) = (one for one in blocks("docs/operations/running.md", "python") if "class OneToken" in one)
    names: dict[str, Any] = {}
    exec(sample, names)
    policy = names["OneToken"]()

    known = await policy.authenticate(Caller("here", {"authorization": "Bearer swordfish"}))

    assert policy.allows(known, Category.READ, "default") is True
    assert policy.allows(known, Category.ADMIN, "") is False
    assert "compare_digest" in sample
    for wrong in ({}, {"authorization": ""}, {"authorization": b"Bearer swordfish"}, {"authorization": "Bearer sword"}):
        with pytest.raises(Unauthenticated):
            await policy.authenticate(Caller("here", wrong))
