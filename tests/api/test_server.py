"""ServerService, health, reflection and the ops listener: what a server says of itself."""

from __future__ import annotations

import asyncio

import pytest
from alembic.script import ScriptDirectory
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from structlog.testing import capture_logs

from stepwell.v1 import server_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.errors_pb2 import ERROR_REASON_DATABASE_UNAVAILABLE
from stepwell.v1.hooks_pb2 import GetHookRequest, TriggerHooksItem, TriggerHooksRequest
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell_server import __version__
from stepwell_server.api.edge.listeners import service_names
from stepwell_server.storage.database.database import Database
from stepwell_server.storage.database.migrate import MIGRATIONS
from tests.support.calls import raw
from tests.support.calls.errors import refusal
from tests.support.databases.postgres import PostgresServer
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_server_describes_itself(server: Served, database_url: str) -> None:
    info = await ServerServiceStub(server.channel).GetServerInfo(pb.GetServerInfoRequest())

    assert info.version == __version__
    assert pb.DatabaseKind.Name(info.database.kind) == f"DATABASE_KIND_{database_url.split(':')[0].upper()}"
    assert info.database.schema_version == ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert info.dispatch_mode == pb.DISPATCH_MODE_EMBEDDED
    assert info.limits.max_payload_bytes == 1024 * 1024
    assert info.limits.max_timer.seconds == 365 * 86_400
    assert info.started_at.ToMicroseconds() <= info.now.ToMicroseconds()


async def test_limits_are_what_the_operator_says(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, dispatch="external", limits={"steps_per_run": 7})

    info = await ServerServiceStub(server.channel).GetServerInfo(pb.GetServerInfoRequest())

    assert (info.limits.max_steps_per_run, info.dispatch_mode) == (7, pb.DISPATCH_MODE_EXTERNAL)


async def test_two_replicas_share_a_database_and_not_an_identity(start_server: StartServer, postgres_url: str) -> None:
    replicas = [await start_server(postgres_url) for _ in range(2)]

    infos = [await ServerServiceStub(one.channel).GetServerInfo(pb.GetServerInfoRequest()) for one in replicas]

    assert len({info.database.database_id for info in infos}) == 1
    assert len({info.replica_id for info in infos}) == 2


async def test_a_replica_says_whether_it_hears_the_others(
    start_server: StartServer, postgres_url: str, postgres: PostgresServer
) -> None:
    server = await start_server(postgres_url)
    stub = ServerServiceStub(server.channel)

    async def mode() -> int:
        return (await stub.GetServerInfo(pb.GetServerInfoRequest())).wake_mode

    async with asyncio.timeout(PATIENCE):
        while await mode() != pb.WAKE_MODE_HINTS:
            await asyncio.sleep(0.01)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'",
            postgres_url,
        )
        while await mode() != pb.WAKE_MODE_POLLING:
            await asyncio.sleep(0.01)
        while await mode() != pb.WAKE_MODE_HINTS:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("listener", ["listen", "ops_listen"])
@pytest.mark.parametrize("service", ["", "liveness", "readiness"])
async def test_health_is_served_on_both_listeners(sqlite_server: Served, listener: str, service: str) -> None:
    async with aio.insecure_channel(getattr(sqlite_server.addresses, listener)) as channel:
        answer = await HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == SERVING


async def test_a_draining_server_is_alive_and_not_ready(sqlite_server: Served) -> None:
    health = HealthStub(sqlite_server.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
    assert (await watch.read()).status == SERVING

    await sqlite_server.app.health.drain()

    assert (await watch.read()).status == NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == SERVING
    watch.cancel()


async def test_the_ops_listener_has_no_data(sqlite_server: Served) -> None:
    await raw.send(sqlite_server.channel, raw.LIST, b"")  # a method that the API has served is no way in either

    async with aio.insecure_channel(sqlite_server.addresses.ops_listen) as channel:
        assert (await refusal(raw.send(channel, raw.LIST, b""))).code.name == "UNIMPLEMENTED"
        assert (
            await refusal(raw.send(channel, "/grpc.health.v1.Health/Check", b"\xff"))
        ).code.name == "INVALID_ARGUMENT"


async def test_metrics_count_calls_by_method_and_code(sqlite_server: Served) -> None:
    """A call is counted once it is over, which may be a moment after its answer."""
    await ServerServiceStub(sqlite_server.channel).GetServerInfo(pb.GetServerInfoRequest())
    await refusal(raw.send(sqlite_server.channel, raw.CREATE, b"\xff"))
    calls = "stepwell_rpc_duration_seconds_count"
    counted = {
        f'{calls}{{code="OK",method="/stepwell.v1.ServerService/GetServerInfo"}} 1.0',
        f'{calls}{{code="INVALID_ARGUMENT",method="/stepwell.v1.NamespaceService/CreateNamespace"}} 1.0',
        "stepwell_database_up 1.0",
    }

    async with asyncio.timeout(PATIENCE):
        while True:
            status, body = await http(sqlite_server, "GET /metrics")
            assert status == 200
            if counted <= {*body.splitlines()}:
                break


async def test_a_full_disk_is_named_to_callers_logged_and_counted_and_loses_nothing(
    start_server: StartServer, sqlite_url: str
) -> None:
    """SQLite says the same where the disk is full and where the file has all the pages that it may have."""
    server = await start_server(sqlite_url)
    payload = Payload(json=f'"{"x" * 500_000}"')
    large = TriggerHooksRequest(items=[TriggerHooksItem(name="note", hook_id="large", payload=payload)])
    stub = HookServiceStub(server.channel)

    with capture_logs() as logs:
        await bound_pages(server.app.db, 1)  # no fewer than it has
        told = (await stub.TriggerHooks(large)).results[0].error
        missing = await refusal(stub.GetHook(GetHookRequest(hook_id="large")))
        await server.app._swept(server.app.db.reachable)
        await bound_pages(server.app.db, 1_000_000)
    stored = await stub.TriggerHooks(large)

    assert (told.reason, stored.results[0].HasField("error")) == (ERROR_REASON_DATABASE_UNAVAILABLE, False)
    assert "the disk of the database is full: nothing of this was stored" in told.message
    assert missing.reason == "HOOK_NOT_FOUND"
    assert "database_full" in {line["event"] for line in logs}
    assert server.app.metrics.registry.get_sample_value("stepwell_database_faults_total", {"cause": "full"})
    assert (await http(server, "GET /readyz"))[0] == 200


async def bound_pages(db: Database, pages: int) -> None:
    await db.run_tx(lambda tx: tx.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("GET /livez", 200), ("GET /readyz", 200), ("HEAD /metrics", 200), ("GET /", 404), ("POST /metrics", 405)],
)
async def test_the_ops_listener_speaks_http(sqlite_server: Served, request_line: str, status: int) -> None:
    assert (await http(sqlite_server, request_line))[0] == status


async def test_readyz_follows_readiness(sqlite_server: Served) -> None:
    await sqlite_server.app.health.drain()

    assert (await http(sqlite_server, "GET /readyz"))[0] == 503
    assert (await http(sqlite_server, "GET /livez"))[0] == 200


@pytest.mark.parametrize("nonsense", [b"x", b"\x00" * 100, b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5000])
async def test_nonsense_on_the_ops_listener_is_hung_up_on(sqlite_server: Served, nonsense: bytes) -> None:
    host, port = sqlite_server.addresses.ops_listen.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(nonsense)
    writer.write_eof()

    try:
        assert b"HTTP/1.1 200" not in await reader.read()
    except ConnectionResetError:
        pass
    finally:
        writer.close()

    assert (await http(sqlite_server, "GET /livez"))[0] == 200


async def test_reflection_names_every_service(sqlite_server: Served) -> None:
    assert await reflected(sqlite_server) >= set(service_names())


async def test_reflection_can_be_switched_off(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, reflection=False)

    with pytest.raises(aio.AioRpcError) as refused:
        await reflected(server)

    assert refused.value.code().name == "UNIMPLEMENTED"


async def reflected(server: Served) -> set[str]:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    stream = ServerReflectionStub(server.channel).ServerReflectionInfo(iter([ask]))
    answer = await stream.read()
    return {service.name for service in answer.list_services_response.service}


async def http(server: Served, request_line: str) -> tuple[int, str]:
    host, port = server.addresses.ops_listen.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{request_line} HTTP/1.1\r\nHost: ops\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body
