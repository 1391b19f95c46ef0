"""Every reason that errors.proto lists, met over the wire: its metadata is what its comment says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.errors import failure_of
from stepwell.v1 import clock_pb2, dispatchers_pb2, namespaces_pb2, server_pb2
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.clock_pb2_grpc import ClockServiceStub
from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.storage.database.database import CommitUnknown, LostRace
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows
from tests.support.calls.reasons import documented
from tests.support.calls.refusals import Stage, of_item, of_stream
from tests.support.calls.triggers import item
from tests.support.patience import PATIENCE
from tests.support.servers.servers import StartServer
from tests.support.workers.frames import done, finish, returned, sleep, wait_for
from tests.support.workers.workers import HOOK, WORKFLOW, HandWorker, UnaryWorker, grant, handlers

NEVER_SENT = {
    "UNSPECIFIED": "it is the zero value",
    "HOOK_HANDLER_NOT_FOUND": "it names the failure of a hook",
    "DUPLICATE_STEP_KEY": "SDKs raise it, before anything is sent",
}
LARGE = '"' + "x" * 1_100_000 + '"'
GRANTED = "tests.support.servers.policies:AsGranted"


Case: TypeAlias = Callable[[Stage], Awaitable[Any]]
"""Meets a refusal: as a call that is refused, or as what it was told."""

CASES: dict[str, Case] = {}
SETTINGS: dict[str, dict[str, Any]] = {}


def case(reason: str, **settings: Any) -> Callable[[Case], Case]:
    """The function meets this reason, on a server with these settings."""

    def keep(function: Case) -> Case:
        CASES[reason], SETTINGS[reason] = function, settings
        return function

    return keep


# ---- one call


CALLS: dict[str, Callable[[Stage], Any]] = {
    "MALFORMED_REQUEST": lambda on: on.flows.create("a\0"),
    "INVALID_FIELD": lambda on: on.flows.create(labels={"": "x"}),
    "ENUM_VALUE_UNKNOWN": lambda on: on.flows.list(order=99),
    "DURATION_OUT_OF_RANGE": lambda on: on.flows.create(wait=61),
    "TIMESTAMP_OUT_OF_RANGE": lambda on: on.flows.list(created_from=Timestamp(seconds=2**60)),
    "PAYLOAD_TOO_LARGE": lambda on: on.flows.create("one", LARGE),
    "PAYLOAD_TOO_DEEP": lambda on: on.flows.create("one", "[" * 65 + "]" * 65),
    "PAYLOAD_NOT_JSON": lambda on: on.flows.create("one", "{"),
    "BATCH_TOO_LARGE": lambda on: on.flows.create_many(*[on.flows.item()] * 101),
    "PAGE_TOKEN_INVALID": lambda on: on.flows.list(page_token="x"),
    "PAGE_SIZE_INVALID": lambda on: on.flows.list(page_size=-1),
    "REQUEST_ID_INVALID": lambda on: on.flows.create(request_id="x" * 37),
    "NAMESPACE_NOT_FOUND": lambda on: Flows(on.channel, namespace="none").create(),
    "NAMESPACE_ALREADY_EXISTS": lambda on: _namespace(on, "default"),
    "INVALID_NAMESPACE": lambda on: _namespace(on, "a b"),
    "CLOCK_NOT_VIRTUAL": lambda on: on.triggers.advance(1),
    "WORKFLOW_NOT_FOUND": lambda on: Flows(on.channel, "none").create(),
    "INSTANCE_NOT_FOUND": lambda on: on.flows.get("none"),
    "INVALID_INSTANCE_ID": lambda on: on.flows.create("a b"),
    "INVALID_EVENT_TYPE": lambda on: on.flows.event("one", "a b"),
    "HOOK_NOT_FOUND": lambda on: on.triggers.get("none"),
    "HOOK_TARGET_NOT_FOUND": lambda on: on.triggers.delete_target("none"),
    "WEBHOOKS_DISABLED": lambda on: on.triggers.put("https://receiver.example.com/"),
}
CASES |= CALLS


def _namespace(on: Stage, name: str) -> Any:
    return NamespaceServiceStub(on.channel).CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=name))


@case("UPDATE_MASK_INVALID")
async def _(on: Stage) -> Any:
    change = namespaces_pb2.UpdateNamespaceRequest(name="default", update_mask=FieldMask(paths=["name"]))
    await NamespaceServiceStub(on.channel).UpdateNamespace(change)


@case("SSRF_BLOCKED", webhooks=True)
async def _(on: Stage) -> Any:
    await on.triggers.put("https://127.0.0.1/")


@case("INVALID_WEBHOOK_URL", webhooks=True)
async def _(on: Stage) -> Any:
    await on.triggers.put("http://receiver.example.com/")


@case("PROCESS_DISABLED", process=False)
async def _(on: Stage) -> Any:
    await DispatcherServiceStub(on.channel).Process(dispatchers_pb2.ProcessRequest())


@case("CLOCK_MOVES_FORWARD_ONLY", virtual_clock=True)
async def _(on: Stage) -> Any:
    past = clock_pb2.AdvanceClockRequest(to=Timestamp(seconds=0))
    await ClockServiceStub(on.channel).AdvanceClock(past)


@case("UNAUTHENTICATED", policy="tests.support.calls.refusals:NoStrangers")
async def _(on: Stage) -> Any:
    await _namespace(on, "new")


@case("PERMISSION_DENIED", policy=GRANTED)
async def _(on: Stage) -> Any:
    await _namespace(on, "new")


# ---- what is there already, or over


@case("IDEMPOTENCY_KEY_REUSED")
async def _(on: Stage) -> Any:
    await on.flows.create("one", request_id="r")
    await on.flows.create("two", request_id="r")


@case("INSTANCE_ID_ALREADY_EXISTS")
async def _(on: Stage) -> Any:
    await on.flows.create("one")
    await on.flows.create("one")


@case("INSTANCE_TERMINAL")
async def _(on: Stage) -> Any:
    await on.flows.create("one")
    for _ in range(2):
        await on.flows.manage("Terminate", "one")


@case("RUN_NOT_FOUND")
async def _(on: Stage) -> Any:
    await on.flows.create("one")
    await on.flows.history("one", run_number=7)


@case("STEP_NOT_FOUND")
async def _(on: Stage) -> Any:
    await on.flows.create("one")
    await on.flows.manage("Restart", "one", from_step="none")


@case("LIMIT_PENDING_EVENTS", limits={"pending_events": 1})
async def _(on: Stage) -> Any:
    await on.flows.create("one")
    for _ in range(2):
        await on.flows.event("one", "go")


@case("HANDLER_LIMIT", limits={"handlers": 2})
async def _(on: Stage) -> Any:
    results = await on.triggers.trigger_many(*(item(name=name) for name in ("a", "b", "c")))
    return of_item(results[2].error)


@case("HOOK_ID_ALREADY_EXISTS")
async def _(on: Stage) -> Any:
    results = await on.triggers.trigger_many(item("one"), item("one"))
    return of_item(results[1].error)


@case("INVALID_HOOK_NAME")
async def _(on: Stage) -> Any:
    (result,) = await on.triggers.trigger_many(item(name="a b"))
    return of_item(result.error)


@case("INVALID_HOOK_ID")
async def _(on: Stage) -> Any:
    (result,) = await on.triggers.trigger_many(item("a b"))
    return of_item(result.error)


@case("HOOK_COMPLETED")
async def _(on: Stage) -> Any:
    await on.triggers.trigger("one")
    await (await on.worker.take()).tell(returned())
    await on.triggers.manage("Retry", "one")


@case("HOOK_ENDED")
async def _(on: Stage) -> Any:
    await on.triggers.trigger("one")
    for _ in range(2):
        await on.triggers.manage("Cancel", "one")


# ---- frames


@case("STEP_TYPE_MISMATCH")
async def _(on: Stage) -> Any:
    return await on.frame(done("a"), sleep("a", 1))


@case("MAX_STEPS_EXCEEDED", limits={"steps_per_run": 1})
async def _(on: Stage) -> Any:
    return await on.frame(done("a"), wait_for("b", "go"))


@case("INVALID_STEP_NAME")
async def _(on: Stage) -> Any:
    return await on.frame(done(""))


# ---- leases and sessions


@case("LEASE_LOST")
async def _(on: Stage) -> Any:
    job, caller = await on.job(), await on.caller()
    lease = pb.ServerFrame(task_id=job.task_id, fence=job.fence)
    await caller.commit(lease, finish(number=1))


@case("RUN_SUPERSEDED")
async def _(on: Stage) -> Any:
    caller = await on.caller()
    bills = Flows(on.channel, "bill")
    await bills.create("one")
    (task,) = await caller.claim()
    await bills.manage("Terminate", "one")
    await caller.commit(task, finish(number=1))


@case("SESSION_HAS_STREAM")
async def _(on: Stage) -> Any:
    await UnaryWorker(on.channel, session_id=on.worker.session_id).claim()


@case("SESSION_NOT_REGISTERED")
async def _(on: Stage) -> Any:
    await UnaryWorker(on.channel).claim()


HELLOS: dict[str, dict[str, Any]] = {
    "PROTOCOL_UNSUPPORTED": {"protocol_version": 99},
    "INVALID_SESSION_ID": {"session_id": "x"},
    "INVALID_WORKFLOW_NAME": {"handlers": [pb.Handler(kind=WORKFLOW, name="a b")]},
    "DUPLICATE_HANDLER": {"handlers": [pb.Handler(kind=HOOK, name="note")] * 2},
}
CASES |= {reason: lambda on, changes=changes: on.hello(**changes) for reason, changes in HELLOS.items()}  # type: ignore[misc]


@case("HELLO_REQUIRED")
async def _(on: Stage) -> Any:
    worker = await on.hire_at(on.server, connect=False)
    worker.open()
    await worker.say(grant(1))
    await worker.until_over()
    return of_stream(worker)


@case("HELLO_TIMEOUT", tuning=Tuning(hello_timeout=1.0))
async def _(on: Stage) -> Any:
    worker = await on.hire_at(on.server, connect=False)
    worker.open()
    await worker.until_over()
    return of_stream(worker)


@case("SUPERSEDED")
async def _(on: Stage) -> Any:
    await on.hire_at(on.server, session_id=on.worker.session_id)
    await on.worker.until_over()
    return of_stream(on.worker)


# ---- too much


@case("STREAM_LIMIT", limits={"streams_per_principal": 1})
async def _(on: Stage) -> Any:
    return await on.hello()


@case("RATE_LIMITED", policy=GRANTED, call_rate=0.001, call_burst=3)  # of which its worker may need more than one
async def _(on: Stage) -> Any:
    for _ in range(4):
        await _info(on)


@case("FRAME_RATE", tuning=Tuning(frames_per_second=0))
async def _(on: Stage) -> Any:
    for _ in range(5):
        await on.worker.say(*[pb.WorkerFrame(task_ack=pb.TaskAck())] * 1000)
    await on.worker.until_over()
    return of_stream(on.worker)


@case("SLOW_CONSUMER", tuning=Tuning(write_timeout=1.0))
async def _(on: Stage) -> Any:
    deaf = WorkerServiceStub(on.channel).Connect()
    hello = HandWorker(on.channel).hello(handlers=handlers("deaf"), worker_id="deaf")
    await deaf.write(pb.ConnectRequest(frames=[pb.WorkerFrame(hello=hello), grant(20)]))
    await _until_hosted(on, "deaf")
    for _ in range(8):
        await Flows(on.channel, "deaf").create(params=LARGE[:1_000_000] + '"')
    await _until_gone(on, "deaf")
    with pytest.raises(aio.AioRpcError) as caught:
        while await deaf.read() is not aio.EOF:
            pass
    return failure_of(caught.value).reason, failure_of(caught.value).metadata


async def _workers(on: Stage) -> set[str]:
    answer = await WorkerServiceStub(on.channel).ListWorkers(pb.ListWorkersRequest())
    return {one.worker_id for one in answer.workers}


async def _until_hosted(on: Stage, worker_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while worker_id not in await _workers(on):
            pass


async def _until_gone(on: Stage, worker_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while worker_id in await _workers(on):
            pass


@case("SERVER_BUSY", unary_calls=1)
async def _(on: Stage) -> Any:
    inside, leave = _held_up(on)
    first = asyncio.ensure_future(_info(on))
    await inside.wait()
    try:
        await _info(on)
    finally:
        leave.set()
        await first


@case("SERVER_DEADLINE", unary_deadline=0.05)
async def _(on: Stage) -> Any:
    _, leave = _held_up(on)
    try:
        await _info(on)
    finally:
        leave.set()


def _info(on: Stage) -> Any:
    return ServerServiceStub(on.channel).GetServerInfo(server_pb2.GetServerInfoRequest())


def _held_up(on: Stage) -> tuple[asyncio.Event, asyncio.Event]:
    """Let nothing reach the database: what is set when something tries to, and what lets it go on."""
    inside, leave, run_tx = asyncio.Event(), asyncio.Event(), on.server.app.db.run_tx

    async def held(*args: Any, **options: Any) -> Any:
        inside.set()
        await leave.wait()
        return await run_tx(*args, **options)

    on.patch(on.server.app.db, "run_tx", held)
    return inside, leave


# ---- the server's own troubles


def failing(error: Exception) -> Case:
    """A call whose transaction ends like this."""

    async def call(on: Stage) -> Any:
        def stumble(point: str) -> None:
            if point == "before-commit/call":
                raise error

        with on.server.app.db.failpoints.install(stumble):
            await _namespace(on, "new")

    return call


CASES |= {
    "INTERNAL": failing(RuntimeError("a bug")),
    "CONFLICT": failing(LostRace()),
    "DATABASE_UNAVAILABLE": failing(CommitUnknown()),
}


@case("SHUTTING_DOWN")
async def _(on: Stage) -> Any:
    on.server.app.parts.workers.drain()
    return await on.hello()


# ---- all of them


@pytest.mark.parametrize("reason", sorted(documented().keys() - NEVER_SENT))
async def test_a_refusal_carries_the_metadata_that_its_reason_lists(
    reason: str,
    start_server: StartServer,
    sqlite_url: str,
    hire_at: Hire,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reason in CASES, "show here how it is met, or why it never is"
    settings = SETTINGS.get(reason, {})
    stage = Stage(lambda **given: start_server(sqlite_url, **given), hire_at, monkeypatch.setattr, settings)
    await stage.open()

    try:
        found, metadata = await CASES[reason](stage)
    except aio.AioRpcError as error:
        found, metadata = failure_of(error).reason, failure_of(error).metadata

    assert found == reason
    assert documented()[reason].describes(set(metadata)), f"{dict(metadata)} is not {documented()[reason]}"
    assert metadata.keys() >= documented()[reason].always and all(metadata.values())


def test_every_reason_is_met_or_never_sent() -> None:
    assert documented().keys() == CASES.keys() | NEVER_SENT.keys()
    assert not CASES.keys() & NEVER_SENT.keys()
