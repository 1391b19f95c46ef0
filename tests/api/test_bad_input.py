"""What callers must not send, and the clear refusal they get. UNKNOWN and tracebacks never reach a caller."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.errors import failure_of, reason_name
from stepwell.v1 import (
    clock_pb2,
    dispatchers_pb2,
    hooks_pb2,
    namespaces_pb2,
    server_pb2,
    transactions_pb2,
    workers_pb2,
    workflows_pb2,
)
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell.v1.common_pb2 import RetryPolicy
from stepwell.v1.errors_pb2 import ItemError
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.api.conftest import Hire
from tests.support.calls import raw
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, item
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff\xff\xff\xff", id="not protobuf"),
        pytest.param(raw.string_field(1, b"abc")[:-1], id="cut short"),
        pytest.param(raw.string_field(1, b"\xc3\x28"), id="bad UTF-8"),
        pytest.param(raw.string_field(1, b"\xed\xa0\x80"), id="lone surrogate"),
        pytest.param(raw.string_field(1, b"a\x00b"), id="NUL"),
        pytest.param(b"\x0b" * 200, id="groups nested too deep"),
    ],
)
async def test_bytes_that_are_no_message_are_refused_as_malformed(sqlite_server: Served, body: bytes) -> None:
    error = await refusal(raw.send(sqlite_server.channel, raw.CREATE, body))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")
    for word in ("Traceback", "Error", "protobuf", "Decode"):
        assert word not in error.message


async def test_malformed_frames_end_a_stream_in_the_same_way(sqlite_server: Served) -> None:
    stream = sqlite_server.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=None,
        response_deserializer=None,
    )

    error = await refusal(stream(iter([b"\xff\xff"])).read())

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")


async def test_unknown_fields_are_ignored(sqlite_server: Served) -> None:
    body = namespaces_pb2.CreateNamespaceRequest(name="newer").SerializeToString() + raw.string_field(999, b"new")

    assert await raw.send(sqlite_server.channel, raw.CREATE, body)


async def test_an_unknown_enum_number_is_refused_with_its_field(sqlite_server: Served) -> None:
    request = workflows_pb2.ListInstancesRequest(workflow="order", statuses=[1, 999])  # type: ignore[list-item]

    error = await refusal(WorkflowServiceStub(sqlite_server.channel).ListInstances(request))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "ENUM_VALUE_UNKNOWN")
    assert error.metadata == {"field": "statuses[1]", "value": "999"}


@pytest.mark.parametrize(
    "duration",
    [
        Duration(seconds=-1),
        Duration(nanos=-1),
        Duration(seconds=1, nanos=-1),
        Duration(nanos=1_000_000_000),
        Duration(seconds=10**18),
    ],
    ids=str,
)
async def test_a_duration_out_of_range_is_refused_with_its_field(sqlite_server: Served, duration: Duration) -> None:
    request = clock_pb2.AdvanceClockRequest(by=duration)

    error = await refusal(ClockServiceStub(sqlite_server.channel).AdvanceClock(request))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "DURATION_OUT_OF_RANGE")
    assert error.metadata == {"field": "by"}


@pytest.mark.parametrize(
    "instant",
    [Timestamp(seconds=-(10**12)), Timestamp(seconds=10**12), Timestamp(nanos=-1), Timestamp(nanos=10**9)],
    ids=str,
)
async def test_an_instant_out_of_range_is_refused_with_its_field(sqlite_server: Served, instant: Timestamp) -> None:
    request = clock_pb2.AdvanceClockRequest(to=instant)

    error = await refusal(ClockServiceStub(sqlite_server.channel).AdvanceClock(request))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "TIMESTAMP_OUT_OF_RANGE")
    assert error.metadata == {"field": "to"}


@pytest.mark.parametrize(
    "name", ["", "-a", "a b", "a/b", "..", "a.b", "ä", "😀", "a\u202eb", "a\n", "a" * 65], ids=ascii
)
async def test_a_name_that_breaks_the_pattern_is_refused(sqlite_server: Served, name: str) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name=name)

    error = await refusal(NamespaceServiceStub(sqlite_server.channel).CreateNamespace(request))

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "INVALID_NAMESPACE")


async def test_a_name_of_the_longest_allowed_length_is_taken(sqlite_server: Served) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name="a" * 64)

    assert await NamespaceServiceStub(sqlite_server.channel).CreateNamespace(request)


async def test_an_instance_that_cannot_be_is_refused_alone(hire: Hire, flows: Flows) -> None:
    await hire(credit=0)

    results = await flows.create_many(flows.item("a"), flows.item("b\0"), flows.item("c", labels={"k": "\0"}))

    assert results[0].instance.instance_id == "a"
    assert [_told(one.error) for one in results[1:]] == [
        ("MALFORMED_REQUEST", "instance_id"),
        ("MALFORMED_REQUEST", "labels"),
    ]
    assert [one.instance_id for one in (await flows.list()).instances] == ["a"]


async def test_an_event_that_cannot_be_is_refused_alone(hire: Hire, flows: Flows) -> None:
    await hire(credit=0)
    await flows.create("one")
    items = [workflows_pb2.SendEventsItem(workflow="order", instance_id="one", type=kind) for kind in ("a", "b\0", "c")]

    results = (await flows.stub.SendEvents(workflows_pb2.SendEventsRequest(items=items))).results

    assert [one.WhichOneof("result") for one in results] == ["stored", "error", "stored"]
    assert _told(results[1].error) == ("MALFORMED_REQUEST", "type")


async def test_a_hook_that_cannot_be_is_refused_alone(triggers: Triggers) -> None:
    late = hooks_pb2.TriggerHooksItem(name="note", process_at=Timestamp(seconds=10**12))
    odd = hooks_pb2.TriggerHooksItem(name="note", retry=RetryPolicy(backoff=99))  # type: ignore[arg-type]

    results = await triggers.trigger_many(item("a"), item("b\0"), late, odd, item("c"))

    assert [one.hook.hook_id for one in (results[0], results[4])] == ["a", "c"]
    assert [_told(one.error) for one in results[1:4]] == [
        ("MALFORMED_REQUEST", "hook_id"),
        ("TIMESTAMP_OUT_OF_RANGE", "process_at"),
        ("ENUM_VALUE_UNKNOWN", "retry.backoff"),
    ]


async def test_what_is_wrong_with_a_batch_itself_refuses_all_of_it(hire: Hire, flows: Flows) -> None:
    await hire(credit=0)

    error = await refusal(flows.create_many(flows.item("a"), on_existing=99))  # type: ignore[arg-type]

    assert (error.reason, error.metadata["field"]) == ("ENUM_VALUE_UNKNOWN", "on_existing")
    assert not (await flows.list()).instances


async def test_one_operation_that_cannot_be_refuses_its_whole_transaction(
    server: Served, hire: Hire, flows: Flows
) -> None:
    await hire(credit=0)
    operations = [transactions_pb2.Operation(create_instance=flows.item(name)) for name in ("a", "b\0")]
    stub = TransactionServiceStub(server.channel)

    error = await refusal(stub.Commit(transactions_pb2.CommitRequest(operations=operations)))

    assert (error.reason, error.metadata["field"]) == ("MALFORMED_REQUEST", "operations[1].create_instance.instance_id")
    assert not (await flows.list()).instances


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"description": "x" * 1025}, "description"),
        ({"limits": namespaces_pb2.NamespaceLimits(max_payload_bytes=1024 * 1024 + 1)}, "limits.max_payload_bytes"),
        ({"limits": namespaces_pb2.NamespaceLimits(max_steps_per_run=-1)}, "limits.max_steps_per_run"),
        ({"retention": namespaces_pb2.Retention(errored=Duration(seconds=59))}, "retention.errored"),
        ({"retention": namespaces_pb2.Retention(complete=Duration(seconds=3651 * 86400))}, "retention.complete"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_field_that_breaks_its_rule_is_named(
    sqlite_server: Served, change: dict[str, object], field: str
) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name="billing", **change)  # type: ignore[arg-type]

    error = await refusal(NamespaceServiceStub(sqlite_server.channel).CreateNamespace(request))

    assert error.code.name == "INVALID_ARGUMENT"
    assert error.metadata["field"] == field


@pytest.mark.parametrize("request_id", ["x" * 37, "with space", "ümlaut", "tab\t"], ids=ascii)
async def test_a_request_id_that_breaks_its_rule_is_refused(sqlite_server: Served, request_id: str) -> None:
    request = namespaces_pb2.CreateNamespaceRequest(name="billing", request_id=request_id)

    error = await refusal(NamespaceServiceStub(sqlite_server.channel).CreateNamespace(request))

    assert error.reason == "REQUEST_ID_INVALID"


async def test_page_sizes_are_defaulted_clamped_or_refused(sqlite_server: Served) -> None:
    stub = NamespaceServiceStub(sqlite_server.channel)
    for number in range(101):
        await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=f"n{number:03}"))

    sizes = {
        asked: len((await stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(page_size=asked))).namespaces)
        for asked in (0, 1, 100, 101, 2**31 - 1)
    }
    error = await refusal(stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(page_size=-1)))

    assert sizes == {0: 25, 1: 1, 100: 100, 101: 100, 2**31 - 1: 100}
    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "PAGE_SIZE_INVALID")


async def test_a_page_token_that_was_altered_is_refused(sqlite_server: Served) -> None:
    stub = NamespaceServiceStub(sqlite_server.channel)
    await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name="other"))
    first = await stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(page_size=1))
    token = first.next_page_token

    altered = ["AAAA", token[:-2], token + "A", "!" + token[1:], "x" * 1_000_000, token.swapcase()]
    errors = [
        await refusal(stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(page_token=bad))) for bad in altered
    ]

    assert {(error.code.name, error.reason) for error in errors} == {("INVALID_ARGUMENT", "PAGE_TOKEN_INVALID")}


async def test_a_page_token_of_another_database_is_refused(start_server: StartServer, tmp_path: object) -> None:
    here = await start_server(f"sqlite:///{tmp_path}/here.db")
    there = await start_server(f"sqlite:///{tmp_path}/there.db")
    stub = NamespaceServiceStub(there.channel)
    await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name="other"))
    token = (await stub.ListNamespaces(namespaces_pb2.ListNamespacesRequest(page_size=1))).next_page_token

    foreign = namespaces_pb2.ListNamespacesRequest(page_token=token)
    error = await refusal(NamespaceServiceStub(here.channel).ListNamespaces(foreign))

    assert error.reason == "PAGE_TOKEN_INVALID"


async def test_a_message_over_four_mebibytes_is_refused(sqlite_server: Served) -> None:
    body = raw.string_field(2, b"x" * (4 * 1024 * 1024))

    error = await refusal(raw.send(sqlite_server.channel, raw.CREATE, body))

    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


UNARY = [
    (service, method)
    for file in (clock_pb2, dispatchers_pb2, hooks_pb2, namespaces_pb2, transactions_pb2, workers_pb2, workflows_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming and not method.server_streaming
]
HONEST = {"workflow": "order", "instance_id": "one", "hook_id": "one", "name": "welcome", "session_id": "0" * 32}


@pytest.mark.parametrize("sign", ["x", "\U0001f600"], ids=["ascii", "wide"])
async def test_a_refusal_repeats_little_of_what_it_refuses(sqlite_server: Served, hire_at: Hire, sign: str) -> None:
    await hire_at(sqlite_server, credit=0)
    said: dict[str, int] = {}

    for service, method in UNARY:
        kind: Any = GetMessageClass(method.input_type)
        honest = {name: text for name, text in HONEST.items() if name in kind.DESCRIPTOR.fields_by_name}
        for field in kind.DESCRIPTOR.fields:
            if field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
                continue
            body = kind(**honest | {field.name: sign * 20_000}).SerializeToString()
            try:
                await raw.send(sqlite_server.channel, f"/{service.full_name}/{method.name}", body)
            except aio.AioRpcError as error:
                assert failure_of(error).reason, (method.name, field.name)
                trailer = sum(len(key) + len(value) for key, value in error.trailing_metadata() or ())
                said[f"{method.name}.{field.name}"] = trailer + len((error.details() or "").encode())

    assert len(said) > 50
    assert {where: size for where, size in said.items() if size > 2048} == {}


async def test_a_compressed_bomb_is_refused(sqlite_server: Served) -> None:
    bomb = raw.string_field(2, b"\0" * (32 * 1024 * 1024))
    assert len(gzip.compress(bomb)) < 64 * 1024

    error = await refusal(raw.send(sqlite_server.channel, raw.CREATE, bomb, compression=grpc.Compression.Gzip))

    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("size", [8192, 12_000, 16_384, 60_000])
async def test_metadata_over_the_limit_is_always_refused(sqlite_server: Served, size: int) -> None:
    stub = ServerServiceStub(sqlite_server.channel)

    for _ in range(5):
        call = stub.GetServerInfo(server_pb2.GetServerInfoRequest(), metadata=(("x-large", "x" * size),))
        assert (await refusal(call)).code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("deadline", [0, 0.05])
async def test_a_deadline_that_passes_is_exceeded(sqlite_server: Served, deadline: float) -> None:
    sqlite_server.app.db.run_tx = _never(asyncio.Event())  # type: ignore[method-assign,assignment]

    call = ServerServiceStub(sqlite_server.channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=deadline)

    assert (await refusal(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_without_a_deadline_gets_the_servers(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, unary_deadline=0.05)
    hold = asyncio.Event()
    server.app.db.run_tx = _never(hold)  # type: ignore[method-assign]

    error = await refusal(ServerServiceStub(server.channel).GetServerInfo(server_pb2.GetServerInfoRequest()))

    assert (error.code.name, error.reason) == ("DEADLINE_EXCEEDED", "SERVER_DEADLINE")


async def test_an_unexpected_error_says_nothing_but_where_to_look(sqlite_server: Served) -> None:
    async def broken(*args: object, **kw: object) -> None:
        raise RuntimeError("secret table name")

    sqlite_server.app.db.run_tx = broken  # type: ignore[method-assign,assignment]

    call = ServerServiceStub(sqlite_server.channel).GetServerInfo(
        server_pb2.GetServerInfoRequest(), metadata=(("x-request-id", "trace-me"),)
    )
    error = await refusal(call)

    assert (error.code.name, error.reason) == ("INTERNAL", "INTERNAL")
    assert error.metadata == {"log_id": "trace-me"}
    assert "secret" not in error.message


@pytest.mark.parametrize("method", ["/stepwell.v1.NamespaceService/Nonsense", "/no.such.Service/Method"])
async def test_a_method_that_does_not_exist_is_unimplemented(sqlite_server: Served, method: str) -> None:
    assert (await refusal(raw.send(sqlite_server.channel, method, b""))).code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x00" * 64]
)
async def test_other_protocols_on_the_port_are_hung_up_on(sqlite_server: Served, hello: bytes) -> None:
    host, port = sqlite_server.addresses.listen.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(hello)

    async with asyncio.timeout(PATIENCE):
        while await reader.read(4096):
            pass
    writer.close()

    assert await ServerServiceStub(sqlite_server.channel).GetServerInfo(server_pb2.GetServerInfoRequest())


def _told(error: ItemError) -> tuple[str, str]:
    """Why an item of a batch was refused, and for which field."""
    return reason_name(error.reason), error.metadata["field"]


def _never(hold: asyncio.Event) -> object:
    async def wait(*args: object, **kw: object) -> None:
        await hold.wait()

    return wait
