"""The server as a process: how it starts, refuses, drains and survives."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import grpc
import pytest
import trustme
from grpc import aio
from sqlalchemy import make_url, text

from stepwell.client.channel import open_channel
from stepwell.v1 import hooks_pb2, namespaces_pb2, server_pb2
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell_server.databases import open_database
from tests.support.calls import errors
from tests.support.databases.postgres import PostgresServer, own_postgres
from tests.support.faults.faults import damage
from tests.support.patience import PATIENCE
from tests.support.servers.servers import DidNotStart, ServerProcess, start_process


async def info(server: ServerProcess) -> server_pb2.GetServerInfoResponse:
    async with server.channel() as channel:
        return await ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)


async def refused(database_url: str, *arguments: str, listen: str = "127.0.0.1:0") -> DidNotStart:
    with pytest.raises(DidNotStart) as caught:
        async with start_process(database_url, *arguments, listen=listen):
            pass
    assert "Traceback" not in str(caught.value)
    return caught.value


async def test_a_second_server_on_one_sqlite_file_is_refused_until_the_first_is_gone(sqlite_url: str) -> None:
    async with start_process(sqlite_url) as first:
        refusal = await refused(sqlite_url)
        assert refusal.code == 1
        assert "is in use by another server" in str(refusal)

        first.kill()
        await first.process.wait()

    async with start_process(sqlite_url) as second:
        assert await info(second)


async def test_a_port_that_is_taken_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    async with start_process(sqlite_url) as first:
        refusal = await refused(f"sqlite:///{tmp_path}/other.db", listen=first.listen)

    assert refusal.code == 1
    assert f"cannot listen on {first.listen}" in str(refusal)


@pytest.mark.parametrize("first_mode", ["--virtual-clock", "--no-virtual-clock"])
async def test_the_kind_of_clock_cannot_change(sqlite_url: str, first_mode: str) -> None:
    other = {"--virtual-clock": "--no-virtual-clock", "--no-virtual-clock": "--virtual-clock"}[first_mode]
    async with start_process(sqlite_url, first_mode) as first:
        assert await first.stop() == 0

    refusal = await refused(sqlite_url, other)

    assert refusal.code == 1
    assert "was created with a" in str(refusal)


async def test_settings_that_are_wrong_are_one_line_and_exit_code_2(sqlite_url: str) -> None:
    refusal = await refused(sqlite_url, "--listen", "0.0.0.0:0")

    assert refusal.code == 2
    assert len(str(refusal).splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("postgresql://nobody@/nothing?host={folder}", "No such file or directory"),
        ("{postgres}", 'database "no_such_database" does not exist'),
        ("sqlite:///{folder}/text.db", "file is not a database"),
        ("sqlite:///{folder}/no/folder.db", "there is no folder"),
    ],
    ids=["no-server", "no-database", "no-sqlite-file", "no-folder"],
)
async def test_a_database_that_cannot_be_used_is_one_line(
    url: str, cause: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    (tmp_path / "text.db").write_text("this is no database, it is a poem " * 100)

    refusal = await refused(url.format(folder=tmp_path, postgres=postgres.url_of("no_such_database")))

    assert refusal.code == 1
    assert cause in str(refusal)
    assert len(str(refusal).splitlines()) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_database_without_the_schema_is_not_served(kind: str, tmp_path: Path, postgres: PostgresServer) -> None:
    empty = f"sqlite:///{tmp_path}/empty.db" if kind == "sqlite" else postgres.create_database()

    refusal = await refused(empty, "--no-auto-migrate")

    assert "it has no schema; run `stepwell migrate`" in str(refusal)


async def test_a_database_that_a_newer_server_migrated_is_served(database_url: str) -> None:
    async with start_process(database_url) as first:
        assert await first.stop() == 0
    db = open_database(make_url(database_url))
    await db.run_tx(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    await db.close()

    async with start_process(database_url) as older:
        assert (await info(older)).database.schema_version == "9999"


@pytest.mark.parametrize("table", ["alembic_version", "clock", "handlers"])
async def test_a_file_that_is_found_damaged_at_the_start_is_a_line_and_no_traceback(tmp_path: Path, table: str) -> None:
    url = f"sqlite:///{tmp_path}/stepwell.db"
    async with start_process(url) as server:
        assert await server.stop() == 0
    damage(tmp_path / "stepwell.db", table)

    refusal = await refused(url)

    assert refusal.code == 1
    assert str(refusal).splitlines()[-1].startswith("stepwell: cannot use the database: ")


async def test_a_file_that_is_found_damaged_while_it_is_served_is_told_and_not_ready(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/stepwell.db"
    async with start_process(url) as server:
        assert await server.stop() == 0
    damage(tmp_path / "stepwell.db", "hook_targets")

    async with start_process(url, "--log-format", "json") as server, aio.insecure_channel(server.listen) as channel:
        await readiness(server, 200)
        listing = HookServiceStub(channel).ListHookTargets(hooks_pb2.ListHookTargetsRequest(namespace="default"))
        found = await errors.refusal(listing)
        await readiness(server, 503)
        assert await server.stop() == 0

    assert (found.reason, "is damaged" in found.message) == ("DATABASE_UNAVAILABLE", True)
    assert "database_damaged" in {json.loads(line)["event"] for line in server.log}


async def test_nothing_of_a_caller_is_logged_when_its_call_fails(sqlite_url: str) -> None:
    policy = "tests.support.servers.policies:Broken"
    async with start_process(sqlite_url, "--policy", policy) as server:
        async with aio.insecure_channel(server.listen) as channel:
            secret = (("authorization", "Bearer hunter2"),)
            with pytest.raises(aio.AioRpcError) as failed:
                await ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest(), metadata=secret)
        assert await server.stop() == 0

    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert any("it broke" in line for line in server.log)
    assert not any("hunter2" in line for line in server.log)


async def test_log_lines_are_json_and_carry_the_callers_id(sqlite_url: str) -> None:
    async with start_process(sqlite_url, "--log-format", "json") as server:
        async with server.channel() as channel:
            hostile = 'evil"\n{"event": "forged"}'.replace("\n", " ")
            for given in ("my-id", hostile):
                call = ServerServiceStub(channel).GetServerInfo(
                    server_pb2.GetServerInfoRequest(), metadata=(("x-request-id", given),)
                )
                await call
        assert await server.stop() == 0

    lines = [json.loads(line) for line in server.log]
    calls = [line for line in lines if line["event"] == "call"]
    assert [call["log_id"] for call in calls] == ["my-id", hostile]
    assert {call["code"] for call in calls} == {"OK"}


async def test_tls_serves_those_who_trust_it_and_takes_a_new_certificate(sqlite_url: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issue(authority, tmp_path)
    tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))

    async with start_process(sqlite_url, *tls) as server:
        request = server_pb2.GetServerInfoRequest()
        async with open_channel(server.listen, tls_ca=tmp_path / "ca.pem") as channel:
            assert await ServerServiceStub(channel).GetServerInfo(request, timeout=PATIENCE)
        async with aio.insecure_channel(server.listen) as channel:
            with pytest.raises(aio.AioRpcError):
                await ServerServiceStub(channel).GetServerInfo(request, timeout=2)

        renewed = trustme.CA()
        renewed.cert_pem.write_to_path(tmp_path / "ca.pem")
        issue(renewed, tmp_path)
        async with open_channel(server.listen, tls_ca=tmp_path / "ca.pem") as channel:
            assert await ServerServiceStub(channel).GetServerInfo(request, timeout=PATIENCE)


def issue(authority: trustme.CA, folder: Path) -> None:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")


async def test_sigterm_under_load_fails_no_call_of_a_retrying_client(database_url: str, unused_tcp_port: int) -> None:
    """Restarts under eight callers: every call ends well, and every namespace that was confirmed is there."""
    listen = f"127.0.0.1:{unused_tcp_port}"
    created: list[str] = []
    stop = asyncio.Event()

    async def caller(number: int, channel: aio.Channel) -> None:
        stub = NamespaceServiceStub(channel)
        for count in range(1_000_000):
            if stop.is_set():
                return
            name = f"c{number}-{count}"
            request = namespaces_pb2.CreateNamespaceRequest(name=name, request_id=name)
            await stub.CreateNamespace(request, timeout=PATIENCE)
            created.append(name)

    async with open_channel(listen) as channel:
        callers = [asyncio.create_task(caller(number, channel)) for number in range(8)]
        for _ in range(2):
            async with start_process(database_url, listen=listen) as server:
                await more_than(created, len(created) + 50)
                assert await server.stop() == 0
        async with start_process(database_url, listen=listen):
            stop.set()
            await asyncio.gather(*callers)
            stored = await all_names(channel)

    assert stored == {"default", *created}


async def more_than(things: list[str], number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(things) <= number:
            await asyncio.sleep(0.01)


async def all_names(channel: aio.Channel) -> set[str]:
    names: set[str] = set()
    token = ""
    while True:
        request = namespaces_pb2.ListNamespacesRequest(page_size=100, page_token=token)
        page = await NamespaceServiceStub(channel).ListNamespaces(request, timeout=PATIENCE)
        names |= {one.name for one in page.namespaces}
        token = page.next_page_token
        if not token:
            return names


@pytest.mark.parametrize(("point", "was_stored"), [("before-commit/call", False), ("after-commit/call", True)])
async def test_a_server_that_dies_around_a_commit_is_asked_again_and_does_it_once(
    database_url: str, point: str, was_stored: bool
) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name="once", request_id="once")
    crash = {"STEPWELL_FAILPOINT": f"{point}:1"}
    async with start_process(database_url, **crash) as doomed, aio.insecure_channel(doomed.listen) as channel:
        with pytest.raises(aio.AioRpcError) as lost:
            await NamespaceServiceStub(channel).CreateNamespace(request, timeout=PATIENCE)
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await doomed.process.wait() == 42

    async with start_process(database_url) as server, server.channel() as channel:
        assert ("once" in await all_names(channel)) is was_stored
        answer = await NamespaceServiceStub(channel).CreateNamespace(request, timeout=PATIENCE)
        assert answer.namespace.name == "once"
        assert await all_names(channel) == {"default", "once"}


async def test_calls_fail_at_once_while_postgresql_is_away_and_go_on_when_it_is_back() -> None:
    with own_postgres() as postgres:
        async with start_process(postgres.url) as server, aio.insecure_channel(server.listen) as channel:
            stub = ServerServiceStub(channel)
            assert await stub.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)

            await asyncio.to_thread(postgres.stop)
            with pytest.raises(aio.AioRpcError) as failed:
                await stub.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            await readiness(server, 503)

            await asyncio.to_thread(postgres.start)
            await readiness(server, 200)
            assert await stub.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=PATIENCE)
            assert await server.stop() == 0


async def readiness(server: ServerProcess, wanted: int) -> None:
    host, port = server.ops_listen.rsplit(":", 1)
    async with asyncio.timeout(PATIENCE):
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
            head = await reader.read()
            writer.close()
            if head.startswith(f"HTTP/1.1 {wanted}".encode()):
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_frozen_client_is_noticed(sqlite_url: str) -> None:
    watching = (
        "import asyncio, sys\n"
        "from grpc import aio\n"
        "from grpc_health.v1 import health_pb2, health_pb2_grpc\n"
        "async def main():\n"
        "    async with aio.insecure_channel(sys.argv[1]) as channel:\n"
        "        async for _ in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):\n"
        "            print('watching', flush=True)\n"
        "asyncio.run(main())\n"
    )
    async with start_process(sqlite_url, "--log-format", "json", "--log-level", "debug") as server:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", watching, server.listen, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"watching\n"

        client.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE):  # keepalives take 13 seconds
            while not any('"CANCELLED"' in line and "Watch" in line for line in server.log):
                await asyncio.sleep(0.05)

        client.kill()
        await client.communicate()
        assert await info(server)
